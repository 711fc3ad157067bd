"""One HTTP request to one vLLM server, and the ways in which it can fail.

Upstream is a Protocol so that the router's flow is tested without a network.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self
from weakref import WeakSet

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from kairos_router.failures import Failure
from vllm_kairos.errors import KairosError

CONNECT_TIMEOUT_S = 10.0
"""The one built-in limit: how long a TCP connection may take. An answer may take as long as the request's own limit."""
KEEPALIVE_S = 3.0
"""Idle connections are dropped before vLLM's server drops them, which it does after 5 s by default."""

MAX_ANSWER_BYTES = 512 * 1024 * 1024
"""A longer answer that is not a stream is broken off: it is held in memory."""


class ServerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's complete answer, kept to be passed on."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UpstreamFailure(KairosError):
    """A request to a server did not bring a good answer to its end; `answer` is what the client may be given."""

    def __init__(self, failure: Failure, detail: str, answer: ServerAnswer | None = None) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.answer = answer


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it goes out."""

    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    method: str = "POST"


class Answer(Protocol):
    """A server's answer whose body has not been read yet."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives; raises UpstreamFailure(BROKEN)."""

    async def read(self) -> bytes:
        """Return the whole body; raises UpstreamFailure(BROKEN)."""


class Upstream(Protocol):
    """Sends calls; leaving the context before the body's end closes the connection, which cancels the call there."""

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Open a call; raises UpstreamFailure (REFUSED, RESET)."""


@dataclass(slots=True)
class _HttpAnswer:
    response: aiohttp.ClientResponse

    @property
    def status(self) -> int:
        return self.response.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self.response.headers

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            async for chunk in self.response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailure(Failure.BROKEN, _say(error)) from error

    async def read(self) -> bytes:
        try:
            length = self.response.content_length
            return await (self.response.read() if length is not None and length <= MAX_ANSWER_BYTES else self._read_bounded())
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamFailure(Failure.BROKEN, _say(error)) from error

    async def _read_bounded(self) -> bytes:
        body = bytearray()
        async for chunk in self.response.content.iter_any():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise UpstreamFailure(Failure.BROKEN, f"answer is longer than {MAX_ANSWER_BYTES} bytes")
        return bytes(body)


@dataclass(slots=True)
class HttpUpstream:
    """The aiohttp implementation; two pools, since a retry of a dropped idle connection must take a fresh one."""

    keepalive_s: float = KEEPALIVE_S
    _pooled: aiohttp.ClientSession = field(init=False)
    _fresh: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> Self:
        self._pooled = _session(_NotingConnector(limit=0, keepalive_timeout=self.keepalive_s))
        self._fresh = _session(aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pooled.close()
        await self._fresh.close()

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        return _Exchange(self, call)

    async def open(self, call: Call) -> aiohttp.ClientResponse:
        """Send `call` and wait for the head of its answer; raises UpstreamFailure (REFUSED, RESET)."""
        _REUSED.set(False)
        try:
            return await _request(self._pooled, call)
        except UpstreamFailure as failure:
            if failure.failure is not Failure.RESET or not _REUSED.get():
                raise
        # The server had closed the idle connection before it saw this request.
        return await _request(self._fresh, call)


class _Exchange(AbstractAsyncContextManager[Answer]):
    """One call and its answer; spelled out, since a generator's context costs more, twice per request."""

    __slots__ = ("_call", "_response", "_upstream")
    _response: aiohttp.ClientResponse

    def __init__(self, upstream: HttpUpstream, call: Call) -> None:
        self._upstream, self._call = upstream, call

    async def __aenter__(self) -> Answer:
        self._response = await self._upstream.open(self._call)
        return _HttpAnswer(self._response)

    async def __aexit__(self, *_: object) -> None:
        # Back to the pool after the body's end, closed before it.
        self._response.release()


_REUSED: ContextVar[bool] = ContextVar("reused", default=False)
"""Whether the calling task's last connection had served a request before."""


class _NotingConnector(aiohttp.TCPConnector):
    """Notes reuse in _REUSED; aiohttp's tracing says it too, at several callbacks per request."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._served: WeakSet[asyncio.BaseProtocol] = WeakSet()

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        connection = await super().connect(*args, **kwargs)
        protocol = connection.protocol
        _REUSED.set(protocol in self._served)
        if protocol is not None:
            self._served.add(protocol)
        return connection


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )


async def _request(session: aiohttp.ClientSession, call: Call) -> aiohttp.ClientResponse:
    try:
        response = await session.request(
            call.method,
            URL(call.url, encoded=True),
            data=call.body or None,
            headers=CIMultiDict(call.headers),
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise UpstreamFailure(Failure.REFUSED, _say(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamFailure(Failure.RESET, _say(error)) from error
    if not 200 <= response.status < 600:
        response.close()
        raise UpstreamFailure(Failure.RESET, f"status {response.status} is none of an answer")
    return response


def _say(error: BaseException) -> str:
    return str(error) or type(error).__name__
