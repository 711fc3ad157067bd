"""Whole replays against real HTTP servers that play a script."""

import asyncio
from typing import Any

import pytest

from tests.replay.virtual_time import Notes, request
from tests.router.stubs import Received, Reply, Script, always, event, running, status
from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.run import Outcome, replay
from vllm_kairos.replay.settings import LoadSettings, ReplaySettings
from vllm_kairos.workload.request import TraceRequest, Workload

DONE = b"data: [DONE]\n\n"


def _answer(body: dict[str, Any], prompt_tokens: int = 8) -> Reply:
    """What a vLLM server streams: it stops after three tokens unless told otherwise."""
    count = body["max_tokens"] if body.get("ignore_eos") or body.get("min_tokens") else min(3, body["max_tokens"])
    chunks = [
        event({"choices": [{"text": "x"}], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": at + 1}})
        for at in range(count)
    ]
    return Reply(parts=[*chunks, DONE], headers={"x-kairos-route": "decode-only", "x-kairos-reason": "slo"})


def _server(received: Received) -> Reply:
    if received.path == "/v1/models":
        return Reply(json={"data": [{"id": "tiny"}, {"id": "other"}]})
    return _answer(received.body)


async def _replay(url: str, *requests: TraceRequest, timeout_s: float | None = 60.0, **fields: Any) -> Outcome:
    settings = ReplaySettings(load=LoadSettings(workload="Bursty"), url=url, timeout_s=timeout_s, **fields)
    return await replay(settings, Workload(name="some", requests=requests), Notes(), asyncio.Event())


async def _errors(script: Script, *, timeout_s: float | None = 60.0) -> list[str]:
    async with running(script) as stub:
        outcome = await _replay(stub.url, request(0), model="tiny", timeout_s=timeout_s)
    return [sample.error for sample in outcome.replayed.samples]


async def test_a_request_says_what_the_trace_says():
    blocks = {"prompt_tokens": 20, "block_hashes": (5,), "block_tokens": 16}
    row = request(**blocks, output_tokens=2, ttft_slo_s=1.5, tbt_slo_s=0.0625, session_id="s 1")
    async with running(_server) as stub:
        outcome = await _replay(f"{stub.url}/v1/", row, api_key="secret", extra_body={"top_p": 0.5})
    sent = stub.received[-1]
    assert sent.path == "/v1/completions"
    assert (sent.body["model"], len(sent.body["prompt"]), sent.body["top_p"], sent.body["stream"]) == ("tiny", 20, 0.5, True)
    names = ("x-slo-ttft-ms", "x-slo-tbt-ms", "x-slo-tpot-ms", "authorization", "x-session-id")
    assert {name: sent.headers[name] for name in names} == {
        "x-slo-ttft-ms": "1500",
        "x-slo-tbt-ms": "62.5",
        "x-slo-tpot-ms": "62.5",
        "authorization": "Bearer secret",
        "x-session-id": "s-1",
    }
    assert sent.headers["x-request-id"] == outcome.replayed.samples[0].sent_id
    assert outcome.replayed.samples[0].decision == {"reason": "slo", "route": "decode-only"}
    assert "secret" not in repr(outcome)


async def test_92_output_lengths_are_enforced_and_mismatches_seen():
    rows = [request(index, output_tokens=tokens) for index, tokens in enumerate((1, 7, 300))]
    async with running(_server) as stub:
        enforced = await _replay(stub.url, *rows, model="tiny")
        not_enforced = await _replay(stub.url, *rows, model="tiny", dialect="openai")
    assert [sample.output_tokens for sample in enforced.replayed.samples] == [1, 7, 300]
    assert [sample.has_wanted_length for sample in not_enforced.replayed.samples] == [True, False, False]
    assert all(one.body["min_tokens"] == one.body["max_tokens"] and one.body["ignore_eos"] for one in stub.received[:3])
    assert not {"min_tokens", "ignore_eos"} & set(stub.received[-1].body)


@pytest.mark.parametrize(("aim", "words"), [("total", 494), ("content", 512)])
async def test_93_chat_text_has_the_length_aimed_at(aim, words):
    def count(received: Received) -> int:
        return 18 + len(received.body["messages"][0]["content"].split())

    def server(received: Received) -> Reply:
        if received.path == "/tokenize":
            return Reply(json={"count": count(received), "max_model_len": 4096})
        return _answer(received.body, prompt_tokens=count(received))

    async with running(server) as stub:
        outcome = await _replay(stub.url, request(prompt_tokens=512), kind="chat", model="tiny", aim=aim)
    assert stub.received[-1].path == "/v1/chat/completions"
    assert outcome.replayed.samples[0].prompt_tokens == words + 18
    assert ("whole prompt" if aim == "total" else "template adds") in outcome.prompt_note


async def test_93_without_a_tokenizer_the_note_says_so():
    async with running(lambda got: Reply(status=404, json={}) if got.path == "/tokenize" else _answer(got.body)) as stub:
        outcome = await _replay(stub.url, request(prompt_tokens=5), kind="chat", model="tiny")
    assert len(stub.received[-1].body["messages"][0]["content"].split()) == 5
    assert "no /tokenize" in outcome.prompt_note


async def test_26_failures_are_told_apart():
    token = event({"choices": [{"text": "x"}]})
    assert await _errors(always(lambda: Reply(parts=[token], reset=True))) == ["cut_off"]
    assert await _errors(always(lambda: Reply(parts=[token]))) == ["truncated"]
    assert await _errors(always(lambda: Reply(parts=[token, event({"error": {"message": "dead"}}), DONE]))) == ["error_event"]
    assert await _errors(status(429)) == ["http_429"]
    assert await _errors(always(lambda: Reply(reset=True))) == ["no_answer"]


async def test_31_97_an_answer_that_never_comes_is_a_timeout():
    assert await _errors(always(lambda: Reply(json={}, gate=asyncio.Event())), timeout_s=0.2) == ["timeout"]


async def test_a_server_that_is_not_there_fails_each_request():
    outcome = await _replay("http://127.0.0.1:9", request(0), model="tiny")
    assert [sample.error for sample in outcome.replayed.samples] == ["connect"]


async def test_30_a_connection_that_the_server_dropped_is_not_used_again():
    rows = [request(0), *(request(index, after=f"r{index - 1}", think_s=0.3) for index in range(1, 4))]
    async with running(_server, keepalive_s=0.1) as stub:
        outcome = await _replay(stub.url, *rows, model="tiny")
    assert [sample.error for sample in outcome.replayed.samples] == [""] * 4
    assert len(stub.received) == 4


async def test_97_many_requests_are_open_at_once():
    gate = asyncio.Event()
    async with running(always(lambda: Reply(parts=[None, event({"choices": [{"text": "x"}]}), DONE], gate=gate))) as stub:
        task = asyncio.create_task(_replay(stub.url, *(request(index) for index in range(300)), model="tiny"))
        await stub.until(lambda one: one.active == 300)
        gate.set()
        outcome = await task
    assert all(sample.ok for sample in outcome.replayed.samples)


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        (status(401), "--model must be given: .* answered 401"),
        (always(lambda: Reply(json={"data": []})), "lists none"),
        (always(lambda: Reply(json=[])), "no list of models"),
        (always(lambda: Reply(parts=[b'{"x": ' + b"[" * 100_000])), "no list of models"),
    ],
)
async def test_a_model_that_cannot_be_found_out_must_be_given(script, rule):
    async with running(script) as stub:
        with pytest.raises(ConfigError, match=rule):
            await _replay(stub.url, request(0))
