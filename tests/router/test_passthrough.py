"""Every other path: whole on one decode server, never on a prefill server (case 12)."""

import asyncio
import json

import pytest
from yarl import URL

from kairos_router.config import LimitSettings
from tests.router.cluster import cluster, read_to_break
from tests.router.stubs import Reply, decode_server, event, status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 64}),
        ("/v1/messages", {"messages": [], "max_tokens": 64}),
        ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {"max_tokens": 64}}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
        ("/some/plugin/route", {"a": 1}),
    ],
)
async def test_other_endpoints_run_whole_on_a_decode_server(path, body):
    """Case 12: deliberately local, and visible as such."""
    async with cluster() as up:
        async with up.session.post(URL(f"{up.url}{path}?q=1%2F2", encoded=True), json=body) as response:
            assert response.status == 200
        (leg,) = up.decode[0].received
        assert (leg.path, leg.body) == (path + "?q=1%2F2", body)
        assert up.prefill[0].received == []
        template = "other" if path == "/some/plugin/route" else path
        assert up.metric(f'kairos_router_requests_total{{endpoint="{template}",status="200"}}') == 1


async def test_models_are_the_decode_servers():
    models = {"data": [{"id": "m"}]}
    async with (
        cluster(decode=[lambda received: Reply(json=models)]) as up,
        up.session.get(up.url + "/v1/models") as response,
    ):
        assert await response.json() == models


async def test_response_state_stays_on_one_server():
    """Case 12."""
    async with cluster(decode=[decode_server] * 3) as up:
        for turn in range(6):
            await up.post("/v1/responses", {"input": "x", "previous_response_id": f"r{turn}"})
        async with up.session.get(up.url + "/v1/responses/r1") as response:
            assert response.status == 200
        assert sorted(len(stub.received) for stub in up.decode) == [0, 0, 7]


async def test_clients_inject_nothing_and_see_nothing_here_either():
    leak = {"id": "r", "kv_transfer_params": {"remote_host": "10.0.0.7"}}

    def serve(received):
        return Reply(parts=[event({"response": leak})]) if received.body.get("stream") else Reply(json=leak)

    async with cluster(decode=[serve]) as up:
        body = {"input": "x", "kv_transfer_params": {"do_remote_prefill": True}}
        _, answer = await up.post("/v1/responses", body)
        assert answer == {"id": "r"}
        async with up.session.post(up.url + "/v1/responses", json={**body, "stream": True}) as response:
            assert await response.read() == b'data: {"response":{"id":"r"}}\n\n'
        assert all("kv_transfer_params" not in leg.body for leg in up.decode[0].received)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"temperature": NaN, "kv_transfer_params": {"do_remote_prefill": true}}',
        b'{"input": "\\ud800", "kv_transfer_params": {"do_remote_prefill": true}}',
        b'\xef\xbb\xbf{"kv_transfer_params": {"do_remote_prefill": true}}',
        '{"sampling_params": {"extra_args": {"kv_transfer_params": {}}}}'.encode("utf-16"),
    ],
)
async def test_json_that_only_a_lenient_server_reads_injects_nothing_either(raw):
    async with (
        cluster(decode=[lambda received: Reply(json={})]) as up,
        up.session.post(up.url + "/inference/v1/generate", data=raw) as response,
    ):
        assert response.status == 200
        assert "kv_transfer_params" not in str(json.loads(up.decode[0].received[0].raw))


async def test_an_objective_that_only_a_lenient_server_reads_is_left_to_it():
    raw = b'{"input": "x", "vllm_xargs": {"kairos_tbt_slo_s": NaN}}'
    async with (
        cluster(decode=[status(400, "got nan")]) as up,
        up.session.post(up.url + "/v1/responses", data=raw, headers={"x-slo-tbt-ms": "50"}) as response,
    ):
        assert (response.status, "got nan" in await response.text()) == (400, True)
        assert up.decode[0].received[0].raw == raw


async def test_bodies_that_are_not_json_pass_as_they_are():
    async with (
        cluster(decode=[lambda received: Reply(json={"got": len(received.raw)})]) as up,
        up.session.post(up.url + "/v1/audio/transcriptions", data=b"\x00\xff" * 8) as response,
    ):
        assert await response.json() == {"got": 16}


async def test_a_servers_own_error_passes_and_a_dead_server_gives_a_reason():
    async with cluster(decode=[status(422, "bad input")]) as up:
        assert (await up.post("/tokenize", {}))[0] == 422
    async with cluster(decode=[lambda received: Reply(reset=True)]) as up:
        code, body = await up.post("/tokenize", {})
        assert (code, body["error"]["reason"]) == (502, "decode-reset")
        for worker in up.parts.workers.all():
            up.parts.workers.drain(worker.name)
        code, body = await up.post("/tokenize", {})
        assert (code, body["error"]["reason"]) == (503, "no-decode-node")


async def test_a_passed_stream_that_breaks_ends_in_an_error_event():
    async with cluster(decode=[lambda received: Reply(parts=[event({"x": 1})], reset=True)]) as up:
        async with up.session.post(up.url + "/v1/messages", json={"stream": True}) as response:
            got, whole = await read_to_break(response)
        assert not whole
        assert b'"error"' in got


async def test_the_limit_holds_here_too():
    async with cluster(
        decode=[lambda received: Reply(gate=asyncio.Event())], limits=LimitSettings(request_timeout_s=0.2)
    ) as up:
        code, body = await up.post("/v1/messages", {})
        assert (code, body["error"]["reason"]) == (504, "request-timeout")
        await up.decode[0].until(lambda stub: stub.cancelled == 1)
