"""Our own shutdown: what runs is finished, what comes is refused, and what is cut off is told so."""

import asyncio
import json

import pytest

from kairos_router.drain import CutOff, Drain
from tests.router.cluster import cluster, read_to_break, until
from tests.router.stubs import Received, Reply, Script, chat_events, decode_server

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
PATHS = ["/v1/chat/completions", "/v1/responses"]


def stuck(*parts: bytes) -> Script:
    """A decode server whose stream stops after `parts` and never ends."""

    def play(received: Received) -> Reply:
        return decode_server(received) if received.is_release else Reply(parts=[*parts, None], gate=asyncio.Event())

    return play


async def test_draining_finishes_what_runs_and_refuses_what_comes():
    """Case 48: our own shutdown."""
    gate = asyncio.Event()
    async with cluster(decode=[lambda received: Reply(gate=gate, json={"choices": []})]) as up:
        request = asyncio.create_task(up.complete())
        await up.decode[0].until(lambda stub: stub.active == 1)
        drained = asyncio.create_task(up.parts.drain.finish(60.0))
        await until(lambda: up.parts.drain.draining)
        code, body = await up.complete()
        assert (code, body["error"]["reason"]) == (503, "draining")
        for path, status in (("/readiness", 503), ("/liveness", 200)):
            async with up.session.get(up.url + path) as response:
                assert response.status == status
        assert not drained.done()
        gate.set()
        assert (await request)[0] == 200
        assert await drained == 0


@pytest.mark.parametrize("path", PATHS)
async def test_an_open_stream_is_cut_off_with_an_error_event_and_no_clean_end(path):
    parts = chat_events("a", "b")[:3]
    async with cluster(decode=[stuck(*parts)]) as up:
        async with up.session.post(up.url + path, json=CHAT) as response:
            assert response.status == 200
            got = await response.content.readexactly(len(b"".join(parts)))
            assert await up.parts.drain.finish(0.0) == 1
            rest, whole = await read_to_break(response)
        assert (got, whole) == (b"".join(parts), False)
        assert rest.startswith(b"data: {")
        assert rest.endswith(b"\n\n")
        assert json.loads(rest[6:])["error"] == {
            "message": "this router shut down before the request was done",
            "type": "ServiceUnavailable",
            "code": 503,
        }
        await up.decode[0].until(lambda stub: stub.cancelled == 1)
        await until(lambda: up.parts.drain.active == 0)
        (record,) = up.records()
        assert (record["status"], record["error"]) == (200, "cut-off")


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_without_an_answer_yet_is_a_503_at_the_limit(path):
    async with cluster(decode=[lambda received: Reply(gate=asyncio.Event())]) as up:
        request = asyncio.create_task(up.post(path, {**CHAT, "stream": False}))
        await up.decode[0].until(lambda stub: stub.active == 1)
        assert await up.parts.drain.finish(0.0) == 1
        code, said = await request
        assert (code, said["error"]["reason"]) == (503, "cut-off")
        await up.decode[0].until(lambda stub: stub.cancelled == 1)


async def test_a_prefill_that_is_cut_off_gets_no_second_attempt():
    async with cluster(prefill=[lambda received: Reply(gate=asyncio.Event())]) as up:
        request = asyncio.create_task(up.complete())
        await up.prefill[0].until(lambda stub: stub.active == 1)
        await up.parts.drain.finish(0.0)
        assert (await request)[0] == 503
        assert (len(up.prefill[0].legs), up.decode[0].legs) == (1, [])


async def test_a_stream_that_ends_within_the_limit_ends_as_ever():
    gate, events = asyncio.Event(), chat_events("a", "b")
    async with cluster(decode=[lambda received: Reply(parts=[*events[:2], None, *events[2:]], gate=gate)]) as up:
        async with up.session.post(up.url + PATHS[0], json=CHAT) as response:
            await response.content.readexactly(len(events[0]))
            drained = asyncio.create_task(up.parts.drain.finish(60.0))
            await until(lambda: up.parts.drain.draining)
            gate.set()
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        assert await drained == 0


async def test_a_timeout_within_a_request_is_not_taken_for_a_cut():
    drain = Drain()
    with pytest.raises(TimeoutError), drain.request():
        async with asyncio.timeout(0.0):
            await asyncio.sleep(1)
    assert drain.active == 0


async def test_a_request_that_is_cut_leaves_its_task_uncancelled():
    drain = Drain()

    async def serve() -> int:
        with pytest.raises(CutOff), drain.request():
            await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    task = asyncio.create_task(serve())
    await until(lambda: drain.active == 1)
    assert await drain.finish(0.0) == 1
    assert await task == 0
