"""Where vLLM reads `vllm_xargs`: what a router puts there reaches the scheduler as the request's objectives."""

from typing import Any

import msgspec
import pytest
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from kairos_router import payload
from vllm_kairos.wire.objectives import TBT_KEY, TPOT_KEY, read_objectives

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CompletionRequest, {"prompt": "hi"}),
        (ChatCompletionRequest, {"messages": MESSAGES}),
        (ResponsesRequest, {"input": "hi"}),
    ],
)
@pytest.mark.parametrize("transfer", [None, {"kairos": {"schema": 1, "chunk_schedule": [64]}}])
def test_objectives_reach_the_sampling_parameters(kind: Any, body: dict[str, Any], transfer: Any) -> None:
    raw = msgspec.json.encode({"model": "m", **body, "kv_transfer_params": transfer})
    request = kind.model_validate_json(payload.body_with_xargs(raw, {TBT_KEY: 0.05, TPOT_KEY: 1.0}))
    extra_args = request.to_sampling_params(16, {}).extra_args
    assert read_objectives(extra_args) == (0.05, 1.0)
    assert extra_args.get("kv_transfer_params") == transfer


def test_messages_become_a_chat_completion_with_the_same_xargs() -> None:
    raw = msgspec.json.encode({"model": "m", "messages": MESSAGES, "max_tokens": 16})
    request = AnthropicMessagesRequest.model_validate_json(payload.body_with_xargs(raw, {TBT_KEY: 0.05}))
    chat = AnthropicServingMessages._build_base_request(request, MESSAGES)
    assert read_objectives(chat.vllm_xargs) == (0.05, None)
