"""What vLLM's own servers answer to a request whose lease is gone, and that nothing of it is left in the scheduler."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from tests.engine.builder import make_request, schedule_params, step
from vllm_kairos.engine import compat_refusal
from vllm_kairos.engine.compat_refusal import LeaseGoneError, add_refusals, end_unserved, tell_refusals
from vllm_kairos.wire.refusal import LEASE_GONE_STATUS, refusal_message, refusal_reason

CLAIM = {"kairos": {"schema": 1, "chunk_schedule": [64], "lease": {"id": "b-1", "router": "r1"}}}
TEXT = refusal_message("spent")


def output(*, stop_reason: str | None = None, finish_reason: str | None = None, finished: bool = True) -> Any:
    return SimpleNamespace(outputs=[SimpleNamespace(finish_reason=finish_reason, stop_reason=stop_reason)], finished=finished)


REFUSED = output(stop_reason=TEXT, finish_reason="error")


class Client:
    """Stands in for AsyncLLM."""

    def __init__(self, *outputs: Any) -> None:
        self._outputs = outputs
        self.ended = ""

    async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **_: Any) -> AsyncIterator[Any]:
        self.ended = "closed"
        for each in self._outputs:
            yield each
        self.ended = "by itself"


def told(client: Client, transfer: Any = CLAIM) -> Any:
    tell_refusals(client)
    params = SamplingParams(extra_args={"kv_transfer_params": transfer} if transfer else None)
    return client.generate({"prompt_token_ids": [1]}, params, "A", priority=0)


async def test_a_refused_request_raises_before_its_first_output() -> None:
    client = Client(REFUSED)
    outputs = told(client)
    with pytest.raises(LeaseGoneError, match=TEXT):
        await anext(outputs)
    assert client.ended == "by itself"  # it is not aborted: it has ended


async def test_a_request_that_is_refused_in_part_ends() -> None:
    client = Client(output(stop_reason=TEXT, finish_reason="error", finished=False), output(finish_reason="stop"))
    with pytest.raises(LeaseGoneError):
        await anext(told(client))
    assert client.ended == "closed"


@pytest.mark.parametrize("other", [output(finish_reason="error"), output(finish_reason="stop", stop_reason=TEXT), output()])
async def test_other_outputs_pass(other: Any) -> None:
    assert [each async for each in told(Client(other))] == [other]


@pytest.mark.parametrize("transfer", [None, {}, schedule_params(64), {"kairos": None}, {"kairos": {"lease": None}}])
async def test_requests_without_a_lease_are_not_looked_at(transfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat_refusal, "_told", None)
    assert [each async for each in told(Client(REFUSED), transfer)] == [REFUSED]


async def test_it_is_told_once() -> None:
    client = Client(REFUSED)
    tell_refusals(client)
    generate = client.generate
    tell_refusals(client)
    assert client.generate is generate


async def test_a_client_that_goes_ends_the_request() -> None:
    client = Client(output(finished=False), output())
    outputs = told(client)
    await anext(outputs)
    await outputs.aclose()
    assert client.ended == "closed"


async def refused() -> AsyncIterator[Any]:
    raise LeaseGoneError(TEXT)
    yield


async def refused_prompts() -> AsyncIterator[tuple[int, Any]]:
    raise LeaseGoneError(TEXT)
    yield


def serving(kind: Any) -> Any:
    """One of vLLM's servers without an engine."""
    server = object.__new__(kind)
    for name in ("enable_force_include_usage", "enable_prompt_tokens_details", "_include_reasoning_tokens_details"):
        setattr(server, name, False)
    server.parser_cls = server.reasoning_parser_cls = server.tool_parser = server.system_fingerprint = None
    server.enable_auto_tools, server.use_harmony, server.response_role = False, False, "assistant"
    return server


async def first_event(stream: AsyncIterator[str]) -> dict[str, Any]:
    event = json.loads((await anext(stream)).removeprefix("data: "))
    assert [each async for each in stream] == ["data: [DONE]\n\n"]
    return dict(event)


def stream_of_completion() -> AsyncIterator[str]:
    request = CompletionRequest(model="m", prompt=[1, 2], stream=True, max_tokens=4)
    server = serving(OpenAIServingCompletion)
    return server.completion_stream_generator(  # type: ignore[no-any-return]
        request, [{}], refused_prompts(), "cmpl-1", 0, "m", num_prompts=1, tokenizer=None, request_metadata=SimpleNamespace()
    )


def stream_of_chat() -> AsyncIterator[str]:
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
    server = serving(OpenAIServingChat)
    return server.chat_completion_stream_generator(  # type: ignore[no-any-return]
        request, refused(), "chatcmpl-1", "m", [], None, SimpleNamespace()
    )


@pytest.mark.parametrize("stream", [stream_of_completion, stream_of_chat])
async def test_vllms_streams_begin_with_the_error(stream: Any) -> None:
    error = (await first_event(stream()))["error"]
    assert (error["code"], refusal_reason(error["message"])) == (LEASE_GONE_STATUS, "spent")


def test_vllm_answers_with_its_status_and_text() -> None:
    app = FastAPI()
    init_exception_handler(app)

    @app.post("/v1/completions")
    async def completions() -> None:
        raise LeaseGoneError(TEXT)

    answer = TestClient(app, raise_server_exceptions=False).post("/v1/completions")
    assert (answer.status_code, refusal_reason(answer.json()["error"]["message"])) == (LEASE_GONE_STATUS, "spent")


@pytest.mark.parametrize("connector", [None, "KairosNixlConnector"])
def test_a_request_ends_before_any_work(build: Any, connector: str | None) -> None:
    scheduler = build(connector=connector, blocks=100)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    request = make_request("A", 40, transfer=CLAIM)
    request.client_index = 3
    scheduler.add_request(request)
    end_unserved(scheduler, request)
    assert scheduler.has_requests()  # so that there is a step to answer in
    assert step(scheduler) == {}
    assert (dict(scheduler.requests), scheduler.kv_cache_manager.block_pool.get_num_free_blocks()) == ({}, free)
    assert not scheduler.has_requests()


def test_its_output_goes_to_its_client_and_says_why(build: Any) -> None:
    scheduler = build()
    request, other = make_request("A", 40), EngineCoreOutputs()
    request.client_index = 3
    scheduler.add_request(request)
    end_unserved(scheduler, request)
    results = {0: other}
    add_refusals(results, [(request, "spent")])
    (answer,) = results[3].outputs
    assert (answer.request_id, str(answer.finish_reason), answer.stop_reason) == ("A", "error", TEXT)
    assert (results[0].outputs, answer.new_token_ids) == ([], [])
    add_refusals(results, [(request, "revoked")])
    assert [each.stop_reason for each in results[3].outputs] == [TEXT, refusal_message("revoked")]


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_seam_the_reason_comes_through_vllms_output_processor(build: Any, kind: RequestOutputKind) -> None:
    """0.30-0.32: an output's stop reason reaches the request's stream also where it is an error and has no token."""
    scheduler = build()
    request, results = make_request("A", 40), {}
    scheduler.add_request(request)
    end_unserved(scheduler, request)
    add_refusals(results, [(request, "spent")])
    sent = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(results[0]))
    params = SamplingParams(detokenize=False, output_kind=kind)
    asked = EngineCoreRequest("A", [1] * 40, None, params, None, 0.0, None, None, None, external_req_id="A")
    processor, queue = OutputProcessor(None, log_stats=False), RequestOutputCollector(kind, "A")
    processor.add_request(asked, None, queue=queue)
    processor.process_outputs(sent.outputs)
    answer = queue.get_nowait()
    assert answer is not None
    assert (answer.finished, compat_refusal._refusal_in(answer)) == (True, TEXT)
    assert processor.get_num_unfinished_requests() == 0


def test_seam_servers_generate_with_the_client_that_plugins_get() -> None:
    """0.30-0.32: prompt and sampling parameters come first, and it is called on the client, not on its class."""
    import inspect

    from vllm.v1.engine.async_llm import AsyncLLM

    assert list(inspect.signature(AsyncLLM.generate).parameters)[:4] == ["self", "prompt", "sampling_params", "request_id"]
    for server in (OpenAIServingCompletion, OpenAIServingChat):
        assert "self.engine_client.generate(" in inspect.getsource(inspect.getmodule(server))  # type: ignore[arg-type]
