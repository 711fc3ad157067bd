"""What real servers answer to a request that claims a lease they never granted; they grant none."""

import json
from typing import Any

import pytest

from tests.e2e.client import Client, deflected
from tests.e2e.prompts import SHORT

pytestmark = pytest.mark.e2e

TEXT = "kairos: lease gone: unknown"


def claiming(*chunk_schedule: int) -> dict[str, Any]:
    fields = deflected(*chunk_schedule)
    fields["kv_transfer_params"]["kairos"]["lease"] = {"id": "none-1", "router": "r1"}
    return fields


async def first_event(client: Client, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    body = {"model": client.model, "max_tokens": 4, "stream": True, **fields, **claiming(64)}
    async with client.session.post(path, json=body) as answer:
        text = await answer.text()
    return dict(json.loads(text.split("\n", 1)[0].removeprefix("data: ")))


async def test_a_whole_answer_is_its_status_and_text(decode: Client) -> None:
    for reply in (await decode.complete(SHORT, **claiming(64)), await decode.chat(SHORT, **claiming(64))):
        assert (reply.status, reply.body["error"]["message"]) == (409, TEXT)


async def test_a_stream_begins_with_it(decode: Client) -> None:
    completion = await first_event(decode, "/v1/completions", {"prompt": SHORT})
    chat = await first_event(decode, "/v1/chat/completions", {"messages": [{"role": "user", "content": SHORT}]})
    for event in (completion, chat):
        assert (event["error"]["code"], event["error"]["message"]) == (409, TEXT)


async def test_responses_say_it_too(decode: Client) -> None:
    body = {"model": decode.model, "input": SHORT, "max_output_tokens": 4, **claiming(64)}
    async with decode.session.post("/v1/responses", json=body) as answer:
        assert (answer.status, (await answer.json())["error"]["message"]) == (409, TEXT)


async def test_nothing_is_left_of_them(decode: Client) -> None:
    for _ in range(20):
        await decode.complete(SHORT, **claiming(64))
    assert await decode.metric("vllm:num_requests_running") + await decode.metric("vllm:num_requests_waiting") == 0
    assert (await decode.complete(SHORT, **deflected(64))).status == 200
