"""What a server says of itself: GET /kairos/node where our plugin runs, GET /v1/models everywhere."""

import os
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec

from kairos_router.flag_values import is_endpoint
from vllm_kairos.core.node import Role

MAX_ANSWER_BYTES = 1 << 20
MAX_RANKS = 1024


class ProbeError(Exception):
    """A server did not answer a probe; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """One server's own words; None or empty where it does not say."""

    node_id: str | None = None
    role: Role | None = None
    models: frozenset[str] = frozenset()  # base models, under every name the server gives them
    max_model_len_tokens: int | None = None
    block_size_tokens: int | None = None
    dp_size: int = 1
    state_endpoints: tuple[str, ...] = ()
    vllm_version: str = ""


class _NodeAnswer(msgspec.Struct, kw_only=True):
    node_id: str | None = None
    role: Role | None = None
    model: str = ""
    state_endpoints: list[str] = []
    vllm_version: str = ""
    block_size_tokens: int | None = None
    max_model_len_tokens: int | None = None
    dp_size: Annotated[int, msgspec.Meta(le=MAX_RANKS)] = 1


class _ModelCard(msgspec.Struct):
    id: str
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None


class _ModelList(msgspec.Struct):
    data: list[_ModelCard] = []


class Prober:
    """Asks servers; follows no redirect and reads no long answer."""

    def __init__(self, session: aiohttp.ClientSession, *, timeout_s: float, api_key: str | None = None) -> None:
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}

    async def health(self, url: str, endpoint: str) -> None:
        """Return when the server is healthy; raises ProbeError."""
        status, _ = await self._get(f"{url}{endpoint}")
        if status != 200:
            raise ProbeError(f"{endpoint} answered {status}")

    async def facts(self, url: str) -> NodeFacts:
        """Read both routes; raises ProbeError when the server cannot be reached or answers nonsense."""
        said = await self._decode(f"{url}/kairos/node", _NodeAnswer)
        listed = await self._decode(f"{url}/v1/models", _ModelList)
        return merge_facts(said, listed)

    async def _decode(self, url: str, kind: Any) -> Any:
        status, body = await self._get(url)
        if status != 200:
            return None
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ProbeError(f"{urlsplit(url).path}: {error}") from error

    async def _get(self, url: str) -> tuple[int, bytes]:
        try:
            async with self._session.get(url, timeout=self._timeout, headers=self._headers, allow_redirects=False) as answer:
                return answer.status, await _read(answer)
        except (aiohttp.ClientError, OSError) as error:
            raise ProbeError(_say(error)) from error


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER_BYTES:
            raise ProbeError(f"{answer.url.path} answered more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _say(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return os.strerror(error.errno) if error.errno else str(error)
    return str(error) or type(error).__name__


def merge_facts(said: _NodeAnswer | None, listed: _ModelList | None) -> NodeFacts:
    """Put both answers together; either may be missing."""
    cards = [card for card in (listed.data if listed else ()) if card.parent is None]
    names = {name for card in cards for name in (card.id, card.root) if name}
    lengths = [card.max_model_len for card in cards if card.max_model_len]
    length = min(lengths) if lengths else None
    if said is None:
        return NodeFacts(models=frozenset(names), max_model_len_tokens=length)
    return NodeFacts(
        node_id=said.node_id or None,
        role=said.role,
        models=frozenset(names | {said.model} - {""}),
        max_model_len_tokens=said.max_model_len_tokens or length,
        block_size_tokens=said.block_size_tokens,
        dp_size=max(1, said.dp_size),
        state_endpoints=tuple(said.state_endpoints),
        vllm_version=said.vllm_version,
    )


_NOT_REACHABLE = frozenset({"*", "0.0.0.0", "::", "[::]", "localhost", "127.0.0.1", "::1", "[::1]"})


def reachable_endpoint(endpoint: str, worker_url: str) -> str | None:
    """Return the address to connect to for an address that the server binds; None: not from here.

    A wildcard or the server's own loopback becomes the host of its URL; a local socket is reachable on
    the same machine alone.
    """
    host = urlsplit(worker_url).hostname or ""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        return endpoint if host in _NOT_REACHABLE else None
    bound, _, port = rest.rpartition(":")
    if scheme != "tcp" or not is_endpoint(endpoint):
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"tcp://{shown if bound in _NOT_REACHABLE else bound}:{port}"
