"""KV transfers between engines that hold no KV: who asks whom, how long it takes, and what can go wrong.

A pull opens a TCP connection to the sender's side channel. Lines of JSON:
`{"op": "read", "engine", "request", "bytes"}` is answered by `{"wait_s"}` or `{"error"}`; after that
wait the reader sends `{"op": "done", "engine", "request"}`, upon which the sender frees the blocks.
`{"op": "heartbeat", "engine", "requests"}` extends leases. A sender that dies closes the connection,
which ends the pull.
"""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from vllm_kairos.emulation.leases import LeaseTable
from vllm_kairos.emulation.link import LinkLine
from vllm_kairos.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0
_MOST_BYTES = 2**46  # more than any node's memory


class TransferError(Exception):
    """A transfer did not come to its end; says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The engine that holds the blocks, by the address of its side channel and the id of its life."""

    host: str
    port: int
    engine_id: str


@dataclass(frozen=True, slots=True)
class EndedPull:
    """A pull that came to its end, with why it failed if it did. `request_id` is the reader's own."""

    request_id: str
    size_bytes: int
    transfer_s: float
    failure: str | None


class TransferService:
    """Both ends of one engine's transfers, on a thread of its own. Raises ConfigError when `listen` is taken."""

    def __init__(
        self, engine_id: str, leases: LeaseTable, *, bandwidth_bytes_per_s: float, latency_s: float, lease_extension_s: float
    ) -> None:
        self._engine_id, self._leases = engine_id, leases
        self._latency_s, self._lease_extension_s = latency_s, lease_extension_s
        self._out, self._in = LinkLine(bandwidth_bytes_per_s), LinkLine(bandwidth_bytes_per_s)
        self._ended: SimpleQueue[EndedPull] = SimpleQueue()
        self.news = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepted: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kairos-emulated-transfers", daemon=True)
        self._thread.start()

    def listen(self, host: str, port: int) -> None:
        """Serve pulls at this address."""
        starting = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, host, port), self._loop)
        try:
            self._server = starting.result(CONNECT_TIMEOUT_S)
        except OSError as error:
            self.close()
            raise ConfigError(f"side channel must be a free address, got {host}:{port}: {error}") from error

    def pull(self, request_id: str, peer: Peer, remote_id: str, size_bytes: int, *, must_fail: bool = False) -> None:
        """Begin to move bytes here; `take_ended` tells the end."""
        self._spawn(self._pull(request_id, peer, remote_id, size_bytes, must_fail))

    def let_go(self, peer: Peer, remote_id: str) -> None:
        """Tell the sender that its blocks are not needed."""
        self._spawn(self._tell(peer, {"op": "done", "request": remote_id}))

    def heartbeat(self, peer: Peer, remote_ids: list[str]) -> None:
        """Tell the sender that these blocks are still wanted."""
        self._spawn(self._tell(peer, {"op": "heartbeat", "requests": remote_ids}))

    def take_ended(self) -> list[EndedPull]:
        """Pulls that ended since the last call."""
        self.news.clear()
        ended: list[EndedPull] = []
        while True:
            try:
                ended.append(self._ended.get_nowait())
            except Empty:
                return ended

    def close(self) -> None:
        """Stop serving and pulling."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(CONNECT_TIMEOUT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CONNECT_TIMEOUT_S)
            self._loop.close()

    async def _shut_down(self) -> None:
        # A server closed between a connection's coming and its transport's making leaves that one open (CPython 3.11).
        while accepting := asyncio.all_tasks() - self._tasks - {asyncio.current_task()}:
            await asyncio.gather(*accepting, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in list(self._accepted):  # those whose task was cancelled before it began
            await _closed(writer)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._loop.call_soon_threadsafe(self._keep, work)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pull(self, request_id: str, peer: Peer, remote_id: str, size_bytes: int, must_fail: bool) -> None:
        started_s = time.monotonic()
        failure = None
        try:
            await asyncio.sleep(self._latency_s)
            if must_fail:
                raise TransferError("emulated fault")
            await self._read(peer, remote_id, size_bytes)
        except (OSError, OverflowError, ValueError, TransferError) as error:  # OverflowError: no port has that number
            failure = f"{type(error).__name__}: {error}"
        self._ended.put(EndedPull(request_id, size_bytes, time.monotonic() - started_s, failure))
        self.news.set()

    async def _read(self, peer: Peer, remote_id: str, size_bytes: int) -> None:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(peer.host, peer.port), CONNECT_TIMEOUT_S)
        try:
            message = {"op": "read", "engine": peer.engine_id, "request": remote_id, "bytes": size_bytes}
            writer.write(json.dumps(message).encode() + b"\n")
            their_wait_s = _wait_s(await asyncio.wait_for(reader.readline(), CONNECT_TIMEOUT_S))
            wait_s = max(their_wait_s, self._in.carry(size_bytes, time.monotonic()))
            await _outlast(reader, wait_s)
            writer.write(json.dumps(message | {"op": "done"}).encode() + b"\n")
            await writer.drain()
        finally:
            await _closed(writer)

    async def _tell(self, peer: Peer, message: dict[str, Any]) -> None:
        try:
            _, writer = await asyncio.wait_for(asyncio.open_connection(peer.host, peer.port), CONNECT_TIMEOUT_S)
        except (OSError, OverflowError, ValueError):
            return  # the lease ends by itself
        writer.write(json.dumps(message | {"engine": peer.engine_id}).encode() + b"\n")
        await _closed(writer)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.add(writer)
        self._keep(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = self._answer(json.loads(line))
                if answer is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # not a message of ours, or the reader is gone: its lease ends by itself
        finally:
            self._accepted.discard(writer)
            await _closed(writer)

    def _answer(self, message: dict[str, Any]) -> dict[str, Any] | None:
        known = message["engine"] == self._engine_id
        if message["op"] == "read":
            if not known or not self._leases.holds(message["request"]):
                return {"error": f"no blocks of request {message['request']!r} here"}
            return {"wait_s": self._out.carry(_size(message["bytes"]), time.monotonic())}
        if known and message["op"] == "done":
            self._leases.release(message["request"])
            self.news.set()
        elif known and message["op"] == "heartbeat":
            self._leases.extend(message["requests"], time.perf_counter() + self._lease_extension_s)
        return None


def _wait_s(line: bytes) -> float:
    """What the sender answered. Raises TransferError, also for what is no answer: anything may listen on a port."""
    try:
        answer = json.loads(line)
        failure = answer.get("error")
        wait_s = 0.0 if failure else float(answer["wait_s"])
    except (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise TransferError(f"no sender answers there: {line[:80]!r}") from error
    if failure:
        raise TransferError(str(failure))
    return wait_s


def _size(size_bytes: Any) -> int:
    """Bytes as a reader gives them; any other number would keep the link busy for ever, or free it. Raises ValueError."""
    if type(size_bytes) is not int or not 0 <= size_bytes <= _MOST_BYTES:
        raise ValueError(f"bytes must be a whole number in 0..{_MOST_BYTES}, got {size_bytes!r}")
    return size_bytes


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait for it: a transport that outlives its loop is never closed."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _outlast(reader: asyncio.StreamReader, wait_s: float) -> None:
    """Wait, unless the other side closes the connection first."""
    try:
        await asyncio.wait_for(reader.read(1), wait_s)
    except TimeoutError:
        return
    raise TransferError("the sender is gone")
