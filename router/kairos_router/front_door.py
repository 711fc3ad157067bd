"""Takes clients' connections: plain requests are answered here, and at the first other one aiohttp gets the connection.

aiohttp's server takes as long for a request as deciding and passing it on does (benchmarks/README.md).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from kairos_router.plain_request import PlainHead, read_head
from kairos_router.plain_sink import PlainSink

_LOG = logging.getLogger(__name__)

IDLE_S = 3630.0
"""An idle connection is closed after this long, as aiohttp does."""
SLOW_BODY_S = 1.0
"""aiohttp gets a connection whose request is not all there by then, and minds its limits of time."""
HELD_BYTES = 64 * 1024
"""From here on a client that sends ahead is not read from until it has its answer."""

_SWEEP_S = 60.0

Take = Callable[[PlainHead, bytes, PlainSink], Awaitable[None]]


class Fallback(Protocol):
    """Makes the protocol that serves what is not plain."""

    def __call__(self) -> asyncio.Protocol:
        """One for each connection."""


class FrontDoor:
    """Makes a protocol for each connection. `take` answers a plain request, whose body is shorter than `limit_bytes`."""

    def __init__(self, take: Take, fallback: Fallback, *, limit_bytes: int) -> None:
        self.take = take
        self.fallback = fallback
        self.limit_bytes = limit_bytes
        self.closing = False
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    async def open(self, bound: socket.socket, backlog: int) -> None:
        """Listen on `bound`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: ClientConnection(self), sock=bound, backlog=backlog)
        self._sweep = loop.call_later(_SWEEP_S, self._sweep_idle)

    async def close(self, grace_s: float) -> None:
        """Listen no more, give what runs `grace_s` to end, then cut it off."""
        self.closing = True
        if self._server is not None and self._sweep is not None:
            self._server.close()
            self._sweep.cancel()
        running = [connection.task for connection in self._connections if connection.task is not None]
        for connection in tuple(self._connections):
            if connection.task is None:
                connection.close()
        if running:
            await asyncio.wait(running, timeout=grace_s)
        for connection in tuple(self._connections):
            connection.abort()
        await asyncio.gather(*running, return_exceptions=True)

    def entered(self, connection: "ClientConnection") -> None:
        """A connection is served here."""
        self._connections.add(connection)

    def left(self, connection: "ClientConnection") -> None:
        """A connection is gone, or is aiohttp's."""
        self._connections.discard(connection)

    def _sweep_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in tuple(self._connections):
            if connection.task is None and connection.idle_since_s < loop.time() - IDLE_S:
                connection.close()
        self._sweep = loop.call_later(_SWEEP_S, self._sweep_idle)


class ClientConnection(asyncio.Protocol):
    """One client's connection, one request at a time; `task` answers the one under way."""

    def __init__(self, door: FrontDoor) -> None:
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head: PlainHead | None = None  # of a request whose body is not all there
        self._received = bytearray()  # that request so far, or what came while another was being answered
        self._slow: asyncio.TimerHandle | None = None
        self._paused: asyncio.Future[None] | None = None  # until the client reads on
        self.task: asyncio.Task[None] | None = None
        self.idle_since_s = self._loop.time()

    # what the event loop does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._door.entered(self)

    def data_received(self, data: bytes) -> None:
        if self.task is not None:
            self._received += data
            if len(self._received) > HELD_BYTES and self._transport is not None:
                self._transport.pause_reading()
        elif self._head is not None:
            self._received += data
            self._go_on(self._head)
        else:
            self._begin(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._door.left(self)
        self._stop_waiting()
        if self._paused is not None:
            self.resume_writing()
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        self._paused = self._loop.create_future()

    def resume_writing(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)

    # what a sink does

    def write(self, *data: bytes) -> None:
        """Send, raising ConnectionError when the client is gone."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("client closed the connection")
        self._transport.writelines(data)

    async def drained(self) -> None:
        """Wait until the client has read enough; raises ConnectionError when it is gone."""
        if self._paused is not None:
            await asyncio.shield(self._paused)
            if self._transport is None:
                raise ConnectionResetError("client closed the connection")

    def close(self) -> None:
        """Close once all is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # one request after the other

    def _begin(self, data: bytes) -> None:
        head = read_head(data)
        if head is None or head.body_bytes >= self._door.limit_bytes:
            self._hand_over(data)
            return
        body = data[head.head_bytes :]
        if len(body) == head.body_bytes:
            self._answer(head, body)
            return
        self._head = head
        self._received += data
        self._slow = self._loop.call_later(SLOW_BODY_S, self._hand_over_rest)
        self._go_on(head)

    def _go_on(self, head: PlainHead) -> None:
        missing = head.head_bytes + head.body_bytes - len(self._received)
        if missing < 0:
            self._hand_over_rest()
        elif missing == 0:
            body = bytes(memoryview(self._received)[head.head_bytes :])
            self._received = bytearray()
            self._stop_waiting()
            self._answer(head, body)

    def _answer(self, head: PlainHead, body: bytes) -> None:
        self.task = self._loop.create_task(self._serve(head, body))

    async def _serve(self, head: PlainHead, body: bytes) -> None:
        sink = PlainSink(self)
        try:
            await self._door.take(head, body, sink)
            await self.drained()
        except ConnectionError:
            self.abort()
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception:
            _LOG.exception("a request ended in an error that nobody foresaw")
            await self._fail(sink)
        finally:
            self.task = None
        self._wait_for_next()

    async def _fail(self, sink: PlainSink) -> None:
        if sink.started:
            self.close()
        else:
            await sink.whole(500, {"content-type": "text/plain"}, b"500 Internal Server Error")

    def _wait_for_next(self) -> None:
        self.idle_since_s = self._loop.time()
        if self._door.closing:
            self.close()
        elif self._received:
            self._hand_over_rest()

    def _hand_over_rest(self) -> None:
        received = bytes(self._received)
        self._received = bytearray()
        self._hand_over(received)

    def _hand_over(self, received: bytes) -> None:
        """Let aiohttp serve this connection from here on, beginning with what was received and not answered."""
        transport = self._transport
        self._stop_waiting()
        if transport is None or transport.is_closing():
            return
        self._door.left(self)
        self._transport = None
        protocol = self._door.fallback()
        transport.set_protocol(protocol)
        if not transport.is_reading():
            transport.resume_reading()
        protocol.connection_made(transport)
        protocol.data_received(received)

    def _stop_waiting(self) -> None:
        self._head = None
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
