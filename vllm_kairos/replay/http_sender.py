"""Sends requests over HTTP."""

import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

import aiohttp

from vllm_kairos.replay.endpoint import Endpoint
from vllm_kairos.replay.exchange import Clock, Exchange, SendError

_KEEPALIVE_S = 2.0  # below the 5 s after which vLLM's own server drops an idle connection
_SPARE_FILES = 64


class HttpSender:
    """One pool of connections without a limit; an async context manager."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float | None) -> None:
        self._url = endpoint.url + endpoint.path
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=None)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=self._timeout, auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, exchange: Exchange, clock: Clock) -> None:
        """Stream the answer into `exchange`. Raises SendError or StreamError."""
        async with (
            _named_failures(exchange),
            self._session.post(
                self._url, data=exchange.prepared.body, headers=exchange.prepared.headers, allow_redirects=False
            ) as answer,
        ):
            exchange.opened(answer.status, answer.headers)
            if answer.status != 200:
                raise SendError(f"http_{answer.status}", (await answer.content.read(400)).decode(errors="replace"))
            async for received in answer.content.iter_any():
                exchange.stream.feed(received, clock())
            exchange.stream.close(clock())


@asynccontextmanager
async def _named_failures(exchange: Exchange) -> AsyncIterator[None]:
    """Raise SendError with a kind for each way a connection fails."""
    try:
        yield
    except TimeoutError as failure:
        raise SendError("timeout", f"no whole answer in time: {failure}".rstrip(": ")) from failure
    except aiohttp.ClientConnectorError as failure:
        raise SendError("connect", str(failure)) from failure
    except (aiohttp.ClientError, OSError, ValueError) as failure:
        kind = "cut_off" if exchange.status is not None else "no_answer"
        raise SendError(kind, f"{type(failure).__name__}: {failure}") from failure


def allow_open_files(wanted: int) -> int:
    """Raise this process's limit on open files towards `wanted` and some more; return how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, wanted + _SPARE_FILES)
    target = min(hard, max(soft, wanted + _SPARE_FILES))
    if target > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return target - _SPARE_FILES
