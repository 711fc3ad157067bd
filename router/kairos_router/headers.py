"""Headers in and out, pure: identity, what each leg carries, what the client gets back."""

import re
from collections.abc import Mapping
from os import urandom

from kairos_router.failures import Leg
from vllm_kairos.core.decision import Assign

REQUEST_ID = "x-request-id"
DATA_PARALLEL_RANK = "x-data-parallel-rank"
PINNED_PREFILL = "x-prefiller-host-port"
BYPASS = "x-bypass-remote-prefill"
_PREFIX = "x-kairos-"
_MAX_ID_CHARS = 128
_ID_UNSAFE = re.compile(r"[^A-Za-z0-9._:-]")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # what no header may hold, though lenient parsers let it in
_TRUE = frozenset({"1", "true", "yes", "on"})

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "expect",
    }
)
_NOT_TO_SERVERS = _HOP_BY_HOP | {
    "host",
    "content-length",
    "accept-encoding",
    "content-encoding",  # bodies were decoded when they were read
    "cookie",
    DATA_PARALLEL_RANK,  # chosen per leg; a client's rank would land on whichever role comes first
    PINNED_PREFILL,
    BYPASS,
}
_NOT_TO_CLIENTS = _HOP_BY_HOP | {"content-length", "date", "server", "set-cookie", REQUEST_ID}


def request_id(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The client's own id from the first header that has one, else a new one; safe to log and to send on."""
    for name in names:
        given = _ID_UNSAFE.sub("-", headers.get(name, "").strip())[:_MAX_ID_CHARS]
        if given:
            return given
    return urandom(16).hex()


def leg_headers(incoming: Mapping[str, str], *, leg_id: str, dp_rank: int | None, api_key: str | None) -> dict[str, str]:
    """What one leg carries: the client's end-to-end headers, the leg's own id, the chosen rank.

    `incoming` holds its names in lower case.
    """
    drop = _NOT_TO_SERVERS
    if "connection" in incoming:
        drop = drop | {token.strip().lower() for token in incoming["connection"].split(",")}
    headers = {name: value for name, value in incoming.items() if name not in drop}
    _settle_authorization(headers, api_key)
    headers[REQUEST_ID] = leg_id
    headers["accept-encoding"] = "identity"
    if dp_rank is not None:
        headers[DATA_PARALLEL_RANK] = str(dp_rank)
    return headers


def client_headers(answered: Mapping[str, str], *, request_id: str) -> dict[str, str]:
    """A server's response headers as the client gets them."""
    headers = {
        lowered: value
        for name, value in answered.items()
        if (lowered := name.lower()) not in _NOT_TO_CLIENTS and (value.isprintable() or not _CONTROL.search(value))
    }
    headers[REQUEST_ID] = request_id
    return headers


def new_unique() -> str:
    """An id that no other request has, in this process or any other."""
    return urandom(8).hex()


def leg_id(request_id: str, unique: str, leg: Leg, attempt: int) -> str:
    """An id no other leg has, in this process or any other: servers refuse or confuse requests that share one."""
    return f"{request_id}-{unique}-{leg[0]}{attempt}"


def asks_local(headers: Mapping[str, str]) -> bool:
    """Say whether the client asks to skip the prefill servers."""
    return headers.get(BYPASS, "").strip().lower() in _TRUE


def of_decision(decision: Assign) -> dict[str, str]:
    """The opt-in response headers that say where a request went and why."""
    said = {
        "route": str(decision.route),
        "reason": str(decision.reason),
        "prefill-node": decision.prefill_node,
        "decode-node": decision.decode_node,
        "predicted-ttft-remote-ms": _milliseconds(decision.remote_ttft_s),
        "predicted-ttft-local-ms": _milliseconds(decision.local_ttft_s),
    }
    return {_PREFIX + name: value for name, value in said.items() if value is not None}


def _settle_authorization(headers: dict[str, str], api_key: str | None) -> None:
    given = headers.get("authorization", "").strip()
    if given and given.lower() != "bearer":
        return
    headers.pop("authorization", None)
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds * 1e3:.3f}"
