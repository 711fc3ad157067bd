"""One client connection over HTTP/1.1: it sends a request, reads the answer, and can then be used again.

The parser is httptools (llhttp), the transport the event loop's; what is left is the order in which things
may happen. A call on aiohttp's client takes five times as long (benchmarks/README.md).
"""

import asyncio
from typing import Self, cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
"""A longer head, informational answers included, is broken off."""
HELD_BYTES = 256 * 1024
"""From here on the server is not read from until the body that waits is taken."""

_SWITCHING_PROTOCOLS = 101


class ConnectionLost(ConnectionError):
    """The answer did not come to its end, or was none."""


class HttpConnection(asyncio.Protocol):
    """One exchange at a time: `send`, `head`, `part` until it returns b"", then `reusable` says whether another may follow."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._loss = ""  # why no more can be had of this connection
        self._paused = False
        self._begin(head_only=False)
        self._done = True  # nothing was asked yet

    def _begin(self, *, head_only: bool) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}  # names in lower case; of a repeated one the last
        self.heard = False  # a byte of the answer has come
        self._head_only = head_only
        self._head_bytes = 0
        self._head_done = self._done = self._until_close = self._keeps_alive = False
        self._parts: list[bytes] = []
        self._held_bytes = 0

    # what the caller does

    def send(self, *data: bytes, head_only: bool = False) -> None:
        """Begin an exchange with the bytes of a whole request. `head_only`: its answer has no body, as that of HEAD."""
        assert self._done
        self._begin(head_only=head_only)
        if self._transport is not None:
            self._transport.writelines(data)

    async def head(self) -> Self:
        """Wait for `status` and `headers` of the final answer; raises ConnectionLost."""
        while not self._head_done:
            await self._wait()
        return self

    async def part(self) -> bytes:
        """Return what has come of the body since the last part, b"" once it is whole; raises ConnectionLost."""
        while not self._parts:
            if self._done:
                return b""
            await self._wait()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._held_bytes = 0
        if self._paused and self._transport is not None:
            self._transport.resume_reading()
            self._paused = False
        return data

    @property
    def ended(self) -> bool:
        """The whole answer has come."""
        return self._done

    @property
    def reusable(self) -> bool:
        """The exchange is over in both directions, and server and parser are ready for the next."""
        transport = self._transport
        idle = self._done and self._keeps_alive and not self._paused and not self._loss
        return idle and transport is not None and not transport.is_closing() and not transport.get_write_buffer_size()

    def abort(self) -> None:
        """Drop the connection at once, whatever is still to be sent or read."""
        self._loss = self._loss or "closed"
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self) -> None:
        if self._loss:
            raise ConnectionLost(self._loss)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # what the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if self._done or self._parser is None:
            self._lose("bytes that nothing asked for")
            return
        self.heard = True
        self._head_bytes += 0 if self._head_done else len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._done:
                self._lose(f"malformed answer: {error}")
            self._keeps_alive = False
        if not self._head_done and self._head_bytes > MAX_HEAD_BYTES:
            self._lose(f"head of the answer is longer than {MAX_HEAD_BYTES} bytes")
        self._hold_back()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_done and self._until_close and exc is None and not self._loss:
            self._done = True
        self._loss = self._loss or str(exc or "server closed the connection")
        self._transport = self._parser = None  # the parser holds this object's methods
        self._wake()

    def _hold_back(self) -> None:
        if self._held_bytes > HELD_BYTES and self._transport is not None and not self._paused and not self._loss:
            self._transport.pause_reading()
            self._paused = True

    def _lose(self, why: str) -> None:
        self._loss = self._loss or why
        self.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # what the parser does

    def on_message_begin(self) -> None:
        if self._done:  # a second answer in the same read
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_done:  # later ones are trailers
            self.headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape")

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        if self._done:
            return
        self.status = self._parser.get_status_code()
        if self.status < 200 and self.status != _SWITCHING_PROTOCOLS:
            self.headers = {}
            return
        self._head_done = True
        self._keeps_alive = self._parser.should_keep_alive() and not self._head_only
        coding = self.headers.get("transfer-encoding", "").rpartition(",")[2].strip().lower()
        self._until_close = "content-length" not in self.headers and coding != "chunked"
        self._done = self._head_only

    def on_body(self, body: bytes) -> None:
        if not self._done:
            self._parts.append(body)
            self._held_bytes += len(body)

    def on_message_complete(self) -> None:
        self._done = self._head_done
