"""What clients may ask for, and what the servers and the router make of it."""

import asyncio
import json

import pytest

from tests.e2e.client import Client, deflected
from tests.e2e.prompts import LONG, SHORT, distinct

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"schema": 1, "chunk_schedule": [0]}, "chunk_schedule[0]"),
        ({"schema": 1, "chunk_schedule": []}, "chunk_schedule"),
        ({"schema": 99, "chunk_schedule": [32]}, "schema"),
        ({"schema": 1, "chunk_schedule": [32], "surprise": 1}, "surprise"),
        ({"schema": 1, "chunk_schedule": "32"}, "chunk_schedule"),
    ],
)
async def test_a_malformed_schedule_is_refused_by_name(decode: Client, params: dict[str, object], named: str) -> None:
    reply = await decode.complete(SHORT, kv_transfer_params={"kairos": params})
    assert reply.status == 400
    assert named in json.dumps(reply.body)
    assert (await decode.complete(SHORT)).status == 200


async def test_two_choices_come_from_one_server(router: Client) -> None:
    before = await router.metric("kairos_router_decisions_total", decision_type="decode-only")
    reply = await router.complete(distinct(LONG, "n"), n=2, temperature=0.5)
    assert len(reply.texts) == 2
    assert await router.metric("kairos_router_decisions_total", decision_type="decode-only") == before + 1


async def test_a_json_schema_holds_over_a_chunked_prefill(prefill: Client, decode: Client) -> None:
    question = distinct(LONG + "Which city is the capital of France?", "json")
    direct = await prefill.chat(question, response_format=FORMAT)
    local = await decode.chat(question, response_format=FORMAT, **deflected(32))
    assert json.loads(local.texts[0])["city"] in ("Paris", "Rome")
    assert local.texts == direct.texts


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["deflected", "kept"])
async def test_a_json_schema_holds_through_the_router(prefill: Client, router: Client, prompt: str) -> None:
    question = distinct(prompt, "json through the router")
    assert (await router.chat(question, response_format=FORMAT)).texts == (
        await prefill.chat(question, response_format=FORMAT)
    ).texts


async def test_a_client_cannot_inject_a_schedule(router: Client) -> None:
    reply = await router.complete(distinct(LONG, "inject"), **deflected(1))
    assert reply.status in (200, 400)
    if reply.status == 200:
        assert "kairos" not in json.dumps(reply.body)


async def test_answers_show_no_engine_id_host_or_block(router: Client) -> None:
    reply = await router.complete(distinct(LONG, "leak"))
    told = json.dumps(reply.body) + json.dumps(reply.headers)
    assert reply.body.get("kv_transfer_params") is None
    assert not [word for word in ("remote_engine_id", "remote_block_ids", "remote_host") if word in told]


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["deflected", "kept"])
async def test_a_cancelled_stream_frees_the_decode_server(router: Client, decode: Client, prompt: str) -> None:
    body = {"model": router.model, "prompt": distinct(prompt, "cancel"), "max_tokens": 2000, "stream": True, "ignore_eos": True}
    async with router.session.post("/v1/completions", json=body) as answer:
        assert answer.status == 200
        await answer.content.readline()
    await _until_idle(decode)


async def test_servers_say_who_they_are(prefill: Client, decode: Client) -> None:
    for client, name, role in ((prefill, "p0", "prefill"), (decode, "d0", "decode")):
        async with client.session.get("/kairos/node") as answer:
            node = await answer.json()
        assert (node["node_id"], node["role"], node["model"]) == (name, role, client.model)


async def test_the_router_sees_fresh_states(router: Client) -> None:
    async with router.session.get("/metrics") as answer:
        text = await answer.text()
    assert [line for line in text.splitlines() if line.startswith("kairos_router_") and "d0" in line]


async def _until_idle(client: Client) -> None:
    """Wait until nothing runs or waits there."""
    for _ in range(100):
        if not await client.metric("vllm:num_requests_running") + await client.metric("vllm:num_requests_waiting"):
            return
        await asyncio.sleep(0.2)
    pytest.fail("requests still run after 20 s")
