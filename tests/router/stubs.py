"""Stub vLLM servers: real aiohttp servers that record what they receive and play a script.

A script is a function from the received request to the reply, so that one stub can answer each request
differently; `Stub.script` may be replaced between requests.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web


@dataclass(frozen=True, slots=True)
class Received:
    """One request as the stub got it; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        return msgspec.json.decode(self.raw)

    @property
    def kv(self) -> Any:
        return self.body.get("kv_transfer_params")

    @property
    def is_release(self) -> bool:
        return b"kairos-release-kv" in self.raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a script answers. `parts` is written piece by piece; None in it waits for `gate`."""

    status: int = 200
    json: Any = None
    parts: Sequence[bytes | None] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    gate: asyncio.Event | None = None  # waited for before the reply begins, or where `parts` has None
    reset: bool = False  # cut the connection instead of ending the reply


Script = Callable[[Received], Reply]


@dataclass(slots=True)
class Stub:
    """A running stub server."""

    script: Script
    url: str = ""
    received: list[Received] = field(default_factory=list)
    cancelled: int = 0  # requests whose client went away before the reply ended
    active: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def name(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def legs(self) -> list[Received]:
        """Requests that are not releases of a KV handle."""
        return [one for one in self.received if not one.is_release]

    async def until(self, holds: Callable[["Stub"], bool], limit_s: float = 20.0) -> None:
        """Wait until `holds(self)`; a generous limit, since the machine may be busy."""
        async with asyncio.timeout(limit_s), self.arrived:
            await self.arrived.wait_for(lambda: holds(self))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        received = Received(request.method, request.raw_path, _lowered(request.headers), await request.read())
        self.received.append(received)
        await self._changed(+1)
        try:
            return await self._play(request, self.script(received))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            await asyncio.shield(self._changed(-1))

    async def _changed(self, change: int) -> None:
        async with self.arrived:
            self.active += change
            self.arrived.notify_all()

    async def _play(self, request: web.Request, reply: Reply) -> web.StreamResponse:
        if reply.parts is not None:
            return await _play_parts(request, reply)
        if reply.gate is not None:
            await reply.gate.wait()
        if reply.reset:
            _cut(request)
        return web.Response(
            status=reply.status, body=msgspec.json.encode(reply.json), content_type="application/json", headers=reply.headers
        )


async def _play_parts(request: web.Request, reply: Reply) -> web.StreamResponse:
    response = web.StreamResponse(status=reply.status, headers={"content-type": "text/event-stream", **reply.headers})
    await response.prepare(request)
    assert reply.parts is not None
    for part in reply.parts:
        if part is None:
            assert reply.gate is not None
            await reply.gate.wait()
        else:
            await response.write(part)
            await asyncio.sleep(0)  # one read for the client each
    if reply.reset:
        _cut(request)
        return response
    await response.write_eof()
    return response


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


@asynccontextmanager
async def running(script: Script, *, keepalive_s: float = 75.0, port: int = 0) -> AsyncIterator[Stub]:
    """Serve a stub for the length of the context."""
    stub = Stub(script)
    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", stub.handle)
    runner = web.AppRunner(app, handler_cancellation=True, keepalive_timeout=keepalive_s, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    stub.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stub
    finally:
        await runner.cleanup()


def handle(engine_id: str = "engine-p", **more: Any) -> dict[str, Any]:
    """The kv_transfer_params of a vLLM 0.32 prefill answer."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3]],
        "remote_engine_id": engine_id,
        "remote_request_id": f"cmpl-{next(_COUNT)}",
        "remote_host": "10.0.0.7",
        "remote_port": 5600,
        "tp_size": 1,
        **more,
    }


_COUNT = itertools.count()


def prefilled(kv: Mapping[str, Any] | None = None, **more: Any) -> Reply:
    """A prefill server's answer."""
    choice = {"index": 0, "text": "x", "message": {"role": "assistant", "content": "x"}, "finish_reason": "length"}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    return Reply(json={"choices": [choice], "usage": usage, "kv_transfer_params": handle() if kv is None else kv, **more})


def always(reply: Callable[[], Reply]) -> Script:
    """A script that answers every request alike."""
    return lambda received: reply()


def in_turn(*scripts: Script) -> Script:
    """A script that plays each of `scripts` once and then repeats the last."""
    remaining = list(scripts)

    def play(received: Received) -> Reply:
        return (remaining.pop(0) if len(remaining) > 1 else remaining[0])(received)

    return play


def status(code: int, message: str = "no") -> Script:
    """A script that refuses everything."""
    return lambda received: Reply(status=code, json={"error": {"message": message, "code": code}})


def decode_server(received: Received) -> Reply:
    """A decode server: streams when asked to, refuses the release of a handle as vLLM does."""
    if received.is_release:
        return Reply(status=404, json={"error": {"message": "The model `kairos-release-kv` does not exist.", "code": 404}})
    if received.raw and received.body.get("stream"):
        return Reply(parts=chat_events("Hello", " world"))
    return completed()


def completed(text: str = "Hello world", **more: Any) -> Reply:
    """A decode server's whole answer."""
    choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
    return Reply(json={"id": "cmpl-1", "choices": [choice], "usage": usage, **more})


def chat_events(*texts: str, done: bool = True) -> list[bytes]:
    """A chat stream: a role chunk, one chunk per text, a finish chunk, usage, [DONE]."""
    bodies: list[Any] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}]
    bodies += [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    bodies.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    bodies.append({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": len(texts), "total_tokens": 12}})
    events = [event(body) for body in bodies]
    return [*events, b"data: [DONE]\n\n"] if done else events


def event(body: Any) -> bytes:
    """One SSE event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"
