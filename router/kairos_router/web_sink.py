"""The aiohttp side of a client's answer."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import web

from kairos_router.relay import is_stream

_AT_ONCE_BYTES = 32 * 1024
"""So much fits into the transport's buffer, whatever the client does."""


class WebSink:
    """Sends one answer on one request; `response` is what the handler returns."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._stream: web.StreamResponse | None = None
        self._whole: web.Response | None = None
        self._reads_events = False
        self._ended = False

    @property
    def started(self) -> bool:
        return self.response is not None

    @property
    def response(self) -> web.StreamResponse | None:
        return self._whole or self._stream

    @property
    def status(self) -> int:
        """The status that went to the client."""
        response = self.response
        return 500 if response is None else response.status

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self._whole = web.Response(status=status, headers=headers, body=body)
        if len(body) > _AT_ONCE_BYTES:
            return  # aiohttp sends it when the handler is done: a client that reads slowly then holds nothing else
        # What is counted and logged afterwards keeps no client waiting.
        with suppress(ConnectionError):
            await self._whole.prepare(self._request)
            await self._whole.write_eof()

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._stream = web.StreamResponse(status=status, headers=headers)
        self._reads_events = is_stream(headers)
        await self._stream.prepare(self._request)

    async def write(self, data: bytes) -> None:
        assert self._stream is not None
        await self._stream.write(data)

    async def finish(self, last: bytes = b"") -> None:
        assert self._stream is not None
        if last:
            await self._stream.write(last)
        self._ended = True
        with suppress(ConnectionError):  # the client has its answer and did not wait for the end of the body
            await self._stream.write_eof()

    async def abort(self, last: bytes) -> None:
        if self._stream is not None and self._reads_events and not self._ended:
            await self._stream.write(last)
        transport: asyncio.Transport | None = self._request.transport
        if transport is not None:
            transport.close()  # without the last chunk, so that the body reads as cut off
