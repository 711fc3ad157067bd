"""Streams through a running router: untouched bytes, honest endings, the right first-token time."""

import asyncio

import aiohttp
import pytest

from tests.router.cluster import Cluster, cluster, read_to_break
from tests.router.stubs import Reply, Script, chat_events, decode_server, event, in_turn

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


def streams(*parts: bytes | None, **more: object) -> Script:
    return lambda received: Reply(parts=parts, **more) if received.body.get("stream") else decode_server(received)


async def read_stream(up: Cluster) -> bytes:
    async with up.session.post(up.url + "/v1/chat/completions", json=CHAT) as response:
        assert response.status == 200
        return await response.read()


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
async def test_bytes_are_the_decode_servers_however_they_came(newline):
    """Case 23: one event a byte at a time, then two events in one write."""
    one, two, *rest = (part.replace(b"\n", newline) for part in chat_events("a", "b"))
    parts = [*(one[at : at + 1] for at in range(len(one))), two + rest[0], *rest[1:]]
    async with cluster(decode=[streams(*parts)]) as up:
        assert await read_stream(up) == b"".join(parts)
        (record,) = up.records()
        assert record["completion_tokens"] == 2
        assert up.metric('kairos_router_ttft_seconds_count{route="prefill-decode"}') == 1


@pytest.mark.parametrize(
    "parts",
    [
        [event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}), b"data: [DONE]\n\n"],
        [event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}), event({"choices": [], "usage": None})],
        [event({"choices": [{"delta": {"content": "x"}}]}), b"data: [DONE]"],
    ],
)
async def test_unusual_endings_are_a_success(parts):
    """Case 27."""
    async with cluster(decode=[streams(*parts)]) as up:
        assert await read_stream(up) == b"".join(parts)
        assert up.records()[0].get("error", "") == ""


async def test_a_stream_that_breaks_ends_in_an_error_event_and_no_done():
    """Case 26: three chunks, then a reset."""
    parts = chat_events("a", "b")[:3]
    async with cluster(decode=[streams(*parts, reset=True)]) as up:
        async with up.session.post(up.url + "/v1/chat/completions", json=CHAT) as response:
            got, whole = await read_to_break(response)
        assert not whole
        assert got.startswith(b"".join(parts))
        assert b'"error"' in got
        assert b"[DONE]" not in got
        assert len(up.decode[0].legs) == 1, "bytes were sent: no replay"
        assert up.records()[0]["error"] == "decode-broken"
        assert up.metric(f'kairos_router_stream_errors_total{{worker="{up.decode[0].name}"}}') == 1


async def test_a_stream_that_just_stops_is_not_a_clean_end():
    """Case 26."""
    async with cluster(decode=[streams(*chat_events("a", done=False)[:2])]) as up:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read_stream(up)
        assert up.records()[0]["error"] == "decode-broken"


async def test_a_stream_that_breaks_before_its_first_byte_is_served_by_another_attempt():
    async with cluster(decode=[in_turn(streams(reset=True), decode_server)]) as up:
        assert (await read_stream(up)).endswith(b"data: [DONE]\n\n")


async def test_ttft_is_the_first_text_not_the_role_chunk():
    """Case 94."""
    gate = asyncio.Event()
    role, *rest = chat_events("a")
    async with cluster(decode=[streams(role, None, *rest, gate=gate)]) as up:
        async with up.session.post(up.url + "/v1/chat/completions", json=CHAT) as response:
            assert await response.content.readuntil(b"\n\n") == role
            assert up.metric('kairos_router_ttft_seconds_count{route="prefill-decode"}') == 0
            gate.set()
            await response.read()
        assert up.metric('kairos_router_ttft_seconds_count{route="prefill-decode"}') == 1
        assert up.records()[0]["ttft_s"] > 0


async def test_no_answer_shows_engine_ids_hosts_or_blocks():
    leak = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "kv_transfer_params": {"remote_host": "10.0.0.7"}}
    leaking = streams(event({**leak}), b"data: [DONE]\n\n")

    def serve(received):
        return leaking(received) if received.body.get("stream") else Reply(json=leak)

    async with cluster(decode=[serve]) as up:
        assert b"10.0.0.7" not in await read_stream(up)
        _, body = await up.complete()
        assert "kv_transfer_params" not in body


async def test_a_decode_200_with_an_error_object_is_not_a_success():
    async with cluster(decode=[lambda received: Reply(json={"error": {"message": "cuda", "code": 500}})]) as up:
        status, body = await up.complete()
        assert (status, body["error"]["message"]) == (502, "cuda")
        assert up.metric('kairos_router_errors_total{kind="decode-faulty-answer"}') == 1


@pytest.mark.parametrize(("code", "told"), [(400, 400), (500, 500), (None, 500)])
async def test_an_error_at_the_head_of_a_stream_is_a_status_not_a_200(code, told):
    error = event({"error": {"message": "kv load failed", "code": code}})
    async with cluster(decode=[streams(error, b"data: [DONE]\n\n")]) as up:
        async with up.session.post(up.url + "/v1/chat/completions", json=CHAT) as response:
            assert response.status == told
            assert (await response.json())["error"]["message"] == "kv load failed"
        assert len(up.decode[0].legs) == (1 if code == 400 else 2)


async def test_an_error_inside_a_stream_passes_and_is_logged():
    error = event({"error": {"message": "late", "code": 500}})
    async with cluster(decode=[streams(*chat_events("a", done=False)[:2], error, b"data: [DONE]\n\n")]) as up:
        assert error in await read_stream(up)
        assert up.records()[0]["error"] == "error-in-stream"


async def test_the_decision_is_told_when_asked_for():
    async with cluster(decision_headers=True) as up:
        for body in (CHAT, {**CHAT, "stream": False}):
            async with up.session.post(up.url + "/v1/chat/completions", json=body) as response:
                await response.read()
                told = {name.lower(): value for name, value in response.headers.items() if name.lower().startswith("x-kairos")}
            assert told == {
                "x-kairos-route": "prefill-decode",
                "x-kairos-reason": "prefill-sooner",
                "x-kairos-prefill-node": up.prefill[0].name,
                "x-kairos-decode-node": up.decode[0].name,
                "x-kairos-predicted-ttft-remote-ms": "200.000",
                "x-kairos-predicted-ttft-local-ms": "400.000",
            }


async def test_the_decision_is_not_told_otherwise():
    async with cluster() as up, up.session.post(up.url + "/v1/chat/completions", json=CHAT) as response:
        await response.read()
        assert not [name for name in response.headers if name.lower().startswith("x-kairos")]


async def test_cached_tokens_are_passed_as_decode_reported_them_and_never_learned():
    """Case 76: D counts the KV it pulled as prefix-cache hits; the answer passes, the router learns the length alone."""
    usage = {"prompt_tokens": 1000, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 999}}
    answer = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}], "usage": usage}
    async with cluster(decode=[lambda received: Reply(json=answer)]) as up:
        _, body = await up.complete()
        assert body["usage"] == usage
        await up.complete()
        assert up.policy.asked[-1].cached_tokens == {}
