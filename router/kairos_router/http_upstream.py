"""Upstream over HTTP: a pool of connections, one per call under way, kept for the next call to the same server."""

import asyncio
import re
import ssl
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import cache, lru_cache
from math import inf
from typing import Self
from urllib.parse import urlsplit

import msgspec

from kairos_router.failures import Failure
from kairos_router.http_connection import ConnectionLost, HttpConnection
from kairos_router.upstream import Answer, Call, UpstreamFailure
from vllm_kairos.errors import RequestError

CONNECT_TIMEOUT_S = 10.0
"""The one built-in limit: how long a TCP connection may take. An answer may take as long as the request's own limit."""
KEEPALIVE_S = 3.0
"""Idle connections are dropped before vLLM's server drops them, which it does after 5 s by default."""

MAX_ANSWER_BYTES = 512 * 1024 * 1024
"""A longer answer that is not a stream is broken off: it is held in memory."""

_UNSENDABLE = re.compile(r"[\r\n\x00]")  # would end or split a header
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(msgspec.Struct, frozen=True):
    """Where a URL's server is."""

    host: str
    port: int
    tls: bool
    authority: str  # as the Host header says it


@lru_cache(1024)
def origin_of(base: str) -> Origin:
    """Take `http://host:port` apart."""
    parts = urlsplit(base)
    port = parts.port or _DEFAULT_PORTS[parts.scheme]
    name = parts.hostname or ""
    shown = f"[{name}]" if ":" in name else name
    authority = shown if port == _DEFAULT_PORTS[parts.scheme] else f"{shown}:{port}"
    return Origin(host=name, port=port, tls=parts.scheme == "https", authority=authority)


def split_url(url: str) -> tuple[Origin, str]:
    """Return the server of `url` and what to ask it for."""
    start = url.find("/", url.index("://") + 3)
    return (origin_of(url[:start]), url[start:]) if start >= 0 else (origin_of(url), "/")


def head_of(call: Call, origin: Origin, target: str) -> bytes:
    """The head of a request. Raises RequestError where a name or a value would not stay within its line."""
    lines = [f"{call.method} {target} HTTP/1.1", f"host: {origin.authority}"]
    lines += [f"{name}: {value}" for name, value in call.headers.items()]
    if "accept" not in call.headers:
        lines.append("accept: */*")
    if call.body or call.method in _METHODS_WITH_BODY:
        lines.append(f"content-length: {len(call.body)}")
    together = "".join(lines)
    if (not together.isprintable() and _UNSENDABLE.search(together)) or " " in target:
        raise RequestError("request must have no line break and no NUL in its path and headers")
    return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")


_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


@dataclass(slots=True)
class _HttpAnswer:
    connection: HttpConnection

    @property
    def status(self) -> int:
        return self.connection.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.connection.headers

    @property
    def ended(self) -> bool:
        return self.connection.ended

    async def part(self) -> bytes:
        try:
            return await self.connection.part()
        except ConnectionLost as error:
            raise UpstreamFailure(Failure.BROKEN, str(error)) from error

    async def read(self) -> bytes:
        parts: list[bytes] = []
        length_bytes = 0
        while data := await self.part():
            parts.append(data)
            length_bytes += len(data)
            if length_bytes > MAX_ANSWER_BYTES:
                raise UpstreamFailure(Failure.BROKEN, f"answer is longer than {MAX_ANSWER_BYTES} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)


class HttpUpstream:
    """Idle connections by server; a call takes the one used last, or opens one."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, keepalive_s: float = KEEPALIVE_S) -> None:
        self._keepalive_s = keepalive_s
        self._idle: dict[Origin, dict[HttpConnection, float]] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        self._drop_idle(inf)

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        return _Exchange(self, call)

    async def open(self, call: Call, origin: Origin, head: bytes) -> HttpConnection:
        """Send `call` and wait for the head of its answer; raises UpstreamFailure (REFUSED, RESET)."""
        connection = self._take_idle(origin)
        if connection is not None:
            try:
                return await _asked(connection, call, head)
            except UpstreamFailure:
                if connection.heard:
                    raise
        # Nothing was idle, or the server had closed what was before it saw this request.
        return await _asked(await _connected(origin), call, head)

    def release(self, origin: Origin, connection: HttpConnection) -> None:
        """Keep a connection for the next call when its exchange is over, else drop it."""
        if self._closed or not connection.reusable:
            connection.abort()
            return
        self._idle.setdefault(origin, {})[connection] = self._loop.time()
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._keepalive_s, self._sweep_idle)

    def _take_idle(self, origin: Origin) -> HttpConnection | None:
        idle = self._idle.get(origin)
        oldest_s = self._loop.time() - self._keepalive_s
        while idle:
            connection, since_s = idle.popitem()
            if since_s > oldest_s and connection.reusable:
                return connection
            connection.abort()
        return None

    def _sweep_idle(self) -> None:
        self._drop_idle(self._loop.time() - self._keepalive_s)
        self._sweep = self._loop.call_later(self._keepalive_s, self._sweep_idle) if self._idle else None

    def _drop_idle(self, until_s: float) -> None:
        for origin, idle in tuple(self._idle.items()):
            for connection in [one for one, since_s in idle.items() if since_s <= until_s or not one.reusable]:
                del idle[connection]
                connection.abort()
            if not idle:
                del self._idle[origin]


class _Exchange(AbstractAsyncContextManager[Answer]):
    """One call and its answer; spelled out, since a generator's context costs more, twice per request."""

    __slots__ = ("_call", "_connection", "_origin", "_upstream")
    _connection: HttpConnection
    _origin: Origin

    def __init__(self, upstream: HttpUpstream, call: Call) -> None:
        self._upstream, self._call = upstream, call

    async def __aenter__(self) -> Answer:
        self._origin, target = split_url(self._call.url)
        head = head_of(self._call, self._origin, target)
        self._connection = await self._upstream.open(self._call, self._origin, head)
        return _HttpAnswer(self._connection)

    async def __aexit__(self, *_: object) -> None:
        self._upstream.release(self._origin, self._connection)


async def _connected(origin: Origin) -> HttpConnection:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                HttpConnection, origin.host, origin.port, ssl=_tls() if origin.tls else None
            )
    except OSError as error:  # TimeoutError and ssl.SSLError too
        raise UpstreamFailure(Failure.REFUSED, str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
    return connection


async def _asked(connection: HttpConnection, call: Call, head: bytes) -> HttpConnection:
    try:
        connection.send(head, call.body, head_only=call.method == "HEAD")
        await connection.head()
        if not 200 <= connection.status < 600:
            raise UpstreamFailure(Failure.RESET, f"status {connection.status} is none of an answer")
    except ConnectionLost as error:
        raise UpstreamFailure(Failure.RESET, str(error)) from error
    except BaseException:
        connection.abort()
        raise
    return connection


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
