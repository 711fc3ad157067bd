"""Clients that leave, servers that are silent, limits that fire: legs are closed and reservations released."""

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from kairos_router.config import LimitSettings
from kairos_router.handles import Handle
from kairos_router.http_upstream import HttpUpstream
from kairos_router.upstream import Call, UpstreamFailure
from tests.router.cluster import Cluster, OpenView, cluster, read_to_break
from tests.router.stubs import Reply, Stub, chat_events, decode_server, handle, in_turn, prefilled, running, status
from vllm_kairos.core.events import PrefillDone


async def leave_when(up: Cluster, stub: Stub, *, stream: bool) -> None:
    """Send a request, wait until `stub` has a leg of it, and go."""
    request = asyncio.create_task(up.chat(stream=stream))
    await stub.until(lambda seen: seen.active == 1)
    request.cancel()
    with suppress(asyncio.CancelledError):
        await request


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_a_silent_prefill_server_closes_the_leg(stream):
    """Case 28."""
    gate = asyncio.Event()
    async with cluster(prefill=[lambda received: Reply(gate=gate)]) as up:
        await leave_when(up, up.prefill[0], stream=stream)
        await up.prefill[0].until(lambda stub: stub.cancelled == 1)
        assert up.decode[0].received == []
        assert len(up.prefill[0].received) == 1, "nobody waits: no retry"
        assert up.view.open == {}
        assert [record["status"] for record in up.records()] == [499]
        assert up.metric("kairos_router_requests_active") == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_a_silent_decode_server_closes_the_leg(stream):
    """Case 28."""
    gate = asyncio.Event()
    role, *rest = chat_events("a")

    def silent(received):
        return Reply(parts=[role, None, *rest], gate=gate) if stream else Reply(gate=gate)

    async with cluster(decode=[silent]) as up:
        await leave_when(up, up.decode[0], stream=stream)
        await up.decode[0].until(lambda stub: stub.cancelled == 1)
        assert len(up.decode[0].received) == 1
        assert up.view.open == {}


async def test_a_client_that_leaves_at_done_has_had_its_answer():
    gate = asyncio.Event()
    events = chat_events("a")
    async with cluster(decode=[lambda received: Reply(parts=[*events, None], gate=gate)]) as up:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with up.session.post(up.url + "/v1/chat/completions", json=body) as answer:
            seen = b""
            while b"[DONE]" not in seen:
                seen += await answer.content.readany()
            answer.close()
        await up.decode[0].until(lambda stub: stub.cancelled == 1)
        assert [(record["status"], record.get("error")) for record in up.records()] == [(200, None)]


async def test_a_client_that_leaves_between_the_legs_has_its_handle_given_up(monkeypatch):
    """Case 34: D refuses the release before admission and so tells P; no decode is run."""
    kv = handle()
    async with cluster(prefill=[lambda received: prefilled(kv)]) as up:
        request = asyncio.create_task(up.complete())
        reached, apply = asyncio.Event(), up.view.apply

        def stop_between(event):
            apply(event)
            if isinstance(event, PrefillDone):
                reached.set()
                raise asyncio.CancelledError  # what aiohttp does to the handler when its client leaves

        monkeypatch.setattr(OpenView, "apply", lambda self, event: stop_between(event))
        await asyncio.wait_for(reached.wait(), 20)
        await up.decode[0].until(lambda stub: len(stub.received) == 1)
        request.cancel()
        with suppress(asyncio.CancelledError, aiohttp.ClientError):
            await request
        (release,) = up.decode[0].received
        assert release.is_release
        assert release.kv == kv
        assert up.metric('kairos_router_stranded_kv_total{cause="release-failed"}') == 0


async def test_a_handle_that_cannot_be_given_up_is_counted():
    """Case 34."""
    async with cluster() as up:
        for worker in up.parts.workers.all():
            up.parts.workers.drain(worker.name)
        up.parts.releaser.give_up(Handle(params=handle(), prefill_node="p", generation=0, received_at_s=0.0), {}, "id")
        await up.parts.releaser.settle()
        assert up.metric('kairos_router_stranded_kv_total{cause="no-decode-node"}') == 1


@pytest.mark.parametrize(("answer", "stranded"), [(404, 0), (401, 1), (200, 1)])
async def test_only_the_refusal_of_the_model_frees_a_handle(answer, stranded):
    """Case 34: a 401 comes from a layer that never looked at the handle."""
    async with cluster(decode=[status(answer)]) as up:
        held = Handle(params=handle(), prefill_node="p", generation=0, received_at_s=0.0)
        up.parts.releaser.give_up(held, {"authorization": "Bearer client"}, "id")
        await up.parts.releaser.settle()
        assert up.decode[0].received[0].headers["authorization"] == "Bearer client"
        assert up.metric('kairos_router_stranded_kv_total{cause="release-failed"}') == stranded


async def test_a_handle_whose_use_is_unknown_is_given_up():
    """Case 34: the decode server answered 503, so the prompt is computed again."""
    async with cluster(decode=[in_turn(status(503), decode_server)]) as up:
        assert (await up.complete())[0] == 200
        await up.parts.releaser.settle()
        released = [one.kv["remote_request_id"] for one in up.decode[0].received if one.is_release]
        assert released == [up.decode[0].legs[0].kv["remote_request_id"]]


async def test_a_handle_that_a_decode_server_refused_is_its_own_to_give_up():
    """Case 35: vLLM tells P itself when it refuses a request before admission."""
    async with cluster(decode=[status(400)]) as up:
        await up.complete()
        await up.parts.releaser.settle()
        assert not [one for one in up.decode[0].received if one.is_release]


@pytest.mark.parametrize("silent", ["prefill", "decode"])
async def test_the_configured_limit_answers_504_and_closes_both_legs(silent):
    """Case 31."""
    gate = asyncio.Event()
    scripts = {silent: [lambda received: Reply(gate=gate)]}
    async with cluster(**scripts, limits=LimitSettings(request_timeout_s=0.2)) as up:
        code, body = await up.complete()
        assert (code, body["error"]["reason"]) == (504, "request-timeout")
        assert "0.2 s" in body["error"]["message"]
        stub = getattr(up, silent)[0]
        await stub.until(lambda seen: seen.cancelled == 1)
        assert up.view.open == {}


async def test_the_limit_inside_a_stream_ends_it_with_an_error_event():
    """Case 31."""
    gate = asyncio.Event()
    role, *rest = chat_events("a")
    limits = LimitSettings(request_timeout_s=0.3)
    async with cluster(decode=[lambda received: Reply(parts=[role, None, *rest], gate=gate)], limits=limits) as up:
        body = {"model": "m", "messages": [], "stream": True}
        async with up.session.post(up.url + "/v1/chat/completions", json=body) as response:
            got, _ = await read_to_break(response)
        assert got.startswith(role)
        assert b'"code":504' in got
        assert b"[DONE]" not in got


async def test_idle_connections_that_the_server_closed_cost_no_request():
    """Case 30: keep-alive of the server far below the pool's; no leg runs twice."""
    async with cluster(keepalive_s=0.05) as up:
        for turn in range(50):
            assert (await up.complete(seed=turn))[0] == 200
            await asyncio.sleep(0.06 if turn % 5 == 0 else 0)
        for stub in (*up.prefill, *up.decode):
            assert [leg.body["seed"] for leg in stub.received] == list(range(50))


async def test_a_dropped_idle_connection_is_retried_once_on_a_fresh_one():
    """Case 30: the server closes as the request arrives."""
    cut = iter([False, True, False, False])
    async with running(lambda received: Reply(json={}, reset=next(cut))) as stub, HttpUpstream() as upstream:
        for _ in range(2):
            async with upstream.send(Call(url=stub.url + "/x", headers={}, body=b"{}")) as answer:
                assert await answer.read() == b"{}"
        assert len(stub.received) == 3


async def test_a_reset_of_a_fresh_connection_is_not_retried_here():
    async with running(lambda received: Reply(reset=True)) as stub, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="reset"):
            async with upstream.send(Call(url=stub.url + "/x", headers={}, body=b"{}")):
                pass
        assert len(stub.received) == 1


async def test_no_connection_is_a_refusal():
    async with running(decode_server) as stub:
        url = stub.url
    async with HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="refused"):
            async with upstream.send(Call(url=url + "/x", headers={}, body=b"{}")):
                pass
