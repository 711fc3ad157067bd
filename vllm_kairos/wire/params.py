"""The `kairos` object inside a request's `kv_transfer_params`: the chunk schedule of a deflected prefill."""

from collections.abc import Iterable
from typing import Any

import msgspec

from vllm_kairos.errors import WireError

PARAMS_KEY = "kairos"
PARAMS_SCHEMA = 1
MAX_SCHEDULE_ENTRIES = 4096
MAX_NAME_LENGTH = 256


class LeaseClaim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lease that a request is sent under, and the router that spends its share of it."""

    id: str
    router: str


class KairosParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Total batch tokens (chi) per engine step, decodes included; the last entry repeats."""

    schema: int
    chunk_schedule: list[int]
    lease: LeaseClaim | None = None  # None: a router that knows of no leases


def parse(raw: Any) -> KairosParams:
    """Return the parameters in `raw` (the value under `kv_transfer_params.kairos`).

    Raises WireError naming the field, the rule and the value.
    """
    try:
        params = msgspec.convert(raw, KairosParams)
    except msgspec.ValidationError as error:
        raise WireError(f"kv_transfer_params.{PARAMS_KEY}: {error}") from error
    except UnicodeEncodeError as error:
        raise WireError(f"kv_transfer_params.{PARAMS_KEY} must hold text without lone surrogates, got {raw!r}") from error
    if not 1 <= params.schema <= PARAMS_SCHEMA:
        raise WireError(f"kv_transfer_params.{PARAMS_KEY}.schema must be 1..{PARAMS_SCHEMA}, got {params.schema}")
    entries, field = params.chunk_schedule, f"kv_transfer_params.{PARAMS_KEY}.chunk_schedule"
    if not 1 <= len(entries) <= MAX_SCHEDULE_ENTRIES:
        raise WireError(f"{field} must hold 1..{MAX_SCHEDULE_ENTRIES} entries, got {len(entries)}")
    for index, chi in enumerate(entries):
        if chi < 1:
            raise WireError(f"{field}[{index}] must be >= 1, got {chi}")
    if params.lease is not None:
        _check_claim(params.lease)
    return params


def _check_claim(claim: LeaseClaim) -> None:
    for name in ("id", "router"):
        length = len(getattr(claim, name))
        if not 1 <= length <= MAX_NAME_LENGTH:
            field = f"kv_transfer_params.{PARAMS_KEY}.lease.{name}"
            raise WireError(f"{field} must hold 1..{MAX_NAME_LENGTH} characters, got {length}")


def encode(batch_tokens: Iterable[int], lease: LeaseClaim | None = None) -> dict[str, Any]:
    """Build the value for `kv_transfer_params.kairos`; trailing repeats are dropped, since the last entry repeats."""
    entries = list(batch_tokens)
    while len(entries) > 1 and entries[-1] == entries[-2]:
        entries.pop()
    value: dict[str, Any] = {"schema": PARAMS_SCHEMA, "chunk_schedule": entries[:MAX_SCHEDULE_ENTRIES]}
    if lease is not None:
        value["lease"] = {"id": lease.id, "router": lease.router}
    return value
