"""A request's own objectives reach the engine that decodes it, on every path that vLLM reads them on."""

import msgspec
import pytest

from kairos_router import payload
from kairos_router.payload import Endpoint
from tests.router.cluster import cluster

TBT, TPOT = "kairos_tbt_slo_s", "kairos_tpot_slo_s"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/completions", {"prompt": "hi", "n": 2}),  # deflected
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", {**CHAT, "n": 2}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [], "max_tokens": 9}),
    ],
)
async def test_objectives_of_headers_reach_the_server_that_decodes(path, body):
    async with cluster() as up:
        status, _ = await up.post(path, body, x_slo_tbt_ms="50", x_llm_d_slo_tpot_ms="25")
        assert status == 200
        (leg,) = up.decode[0].received
        assert leg.body["vllm_xargs"] == {TBT: 0.05, TPOT: 0.025}
        assert {key: leg.body[key] for key in body} == body


@pytest.mark.parametrize("n", [1, 2])
async def test_what_the_client_put_there_itself_stays(n):
    own = {"session_id": "s", TPOT: 0.04}
    async with cluster() as up:
        status, _ = await up.post("/v1/completions", {"prompt": "hi", "n": n, "vllm_xargs": own}, x_slo_tbt_ms="50")
        assert status == 200
        assert up.decode[0].received[0].body["vllm_xargs"] == {**own, TBT: 0.05}
        assert up.policy.asked[0].tbt_slo_s == 0.04


async def test_the_decision_is_made_by_the_objectives_that_the_engine_keeps():
    async with cluster() as up:
        await up.post("/v1/completions", {"prompt": "hi", "vllm_xargs": {TBT: 0.03}}, x_slo_tbt_ms="50", x_slo_ttft_ms="900")
        assert (up.policy.asked[0].tbt_slo_s, up.policy.asked[0].ttft_slo_s) == (0.03, 0.9)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("header", ["x_slo_tbt_ms", "x_slo_tpot_ms", "x_llm_d_slo_tpot_ms", "x_slo_ttft_ms"])
async def test_a_malformed_header_is_a_400_that_names_it(path, header):
    async with cluster() as up:
        status, answer = await up.post(path, {**CHAT, "prompt": "x", "input": "x"}, **{header: "soon"})
        assert status == 400
        assert header.replace("_", "-") in answer["error"]["message"]
        assert "'soon'" in answer["error"]["message"]
        assert up.decode[0].received == up.prefill[0].received == []


async def test_a_malformed_objective_in_the_body_is_a_400_that_names_it():
    async with cluster() as up:
        status, answer = await up.post("/v1/completions", {"prompt": "x", "vllm_xargs": {TBT: -1}})
        assert status == 400
        assert f"vllm_xargs.{TBT}" in answer["error"]["message"]


async def test_other_paths_are_left_alone():
    async with cluster() as up:
        assert (await up.post("/tokenize", {"prompt": "x"}, x_slo_tbt_ms="soon"))[0] == 200
        assert up.decode[0].received[0].body == {"prompt": "x"}


@pytest.mark.parametrize("raw", [b'{"prompt":"x"}', b' { "prompt" : "x" } ', b"{}", b'{"a":"}"}'])
def test_objectives_go_behind_the_clients_own_bytes(raw):
    request = payload.parse(Endpoint.COMPLETIONS, raw)
    sent = payload.with_xargs(request, {TBT: 0.05})
    assert sent.raw.startswith(raw[: raw.rindex(b"}")])
    assert msgspec.json.decode(sent.raw) == {**request.body, "vllm_xargs": {TBT: 0.05}} == sent.body
    assert payload.body_with_xargs(raw, {TBT: 0.05}) == sent.raw
    assert msgspec.json.decode(payload.decode_leg(sent, {"a": 1})) == {**sent.body, "kv_transfer_params": {"a": 1}}


def test_what_a_client_may_not_set_is_dropped_all_the_same():
    request = payload.parse(
        Endpoint.COMPLETIONS, b'{"prompt":"x","kv_transfer_params":{},"vllm_xargs":{"kv_transfer_params":{}}}'
    )
    sent = payload.with_xargs(request, {TBT: 0.05})
    assert msgspec.json.decode(payload.deflected_leg(sent, None)) == {"prompt": "x", "vllm_xargs": {TBT: 0.05}}


@pytest.mark.parametrize("xargs", ["text", [1], {TBT: 0.01}, {TBT: 0.01, "other": 1}])
def test_bytes_stay_where_there_is_nothing_to_add(xargs):
    raw = msgspec.json.encode({"prompt": "x", "vllm_xargs": xargs})
    assert payload.with_xargs(payload.parse(Endpoint.COMPLETIONS, raw), {TBT: 0.05}).raw is raw
    assert payload.body_with_xargs(raw, {TBT: 0.05}) is raw


@pytest.mark.parametrize("raw", [b"", b"[]", b'"x"', b"{", b'{"a":NaN}'])
def test_a_passed_body_that_is_no_object_stays(raw):
    assert payload.body_with_xargs(raw, {TBT: 0.05}) is raw


async def test_without_objectives_both_legs_are_what_they_were():
    async with cluster() as up:
        await up.post("/v1/completions", {"prompt": "hi"}, x_slo_ttft_ms="900")
        assert "vllm_xargs" not in up.decode[0].received[0].body
        assert "vllm_xargs" not in up.prefill[0].received[0].body
