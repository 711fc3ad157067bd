"""Bodies of both legs: what is dropped, what is kept, and that nothing of the client's is lost."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_router import payload
from kairos_router.payload import Endpoint
from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule
from vllm_kairos.errors import RequestError

HANDLE = {"do_remote_prefill": True, "remote_engine_id": "e", "unknown": {"deep": [1, None]}}
SCHEDULE = ChunkSchedule((ChunkRun(512, 3), ChunkRun(128, 1)))


def parsed(body: Any, endpoint: Endpoint = Endpoint.CHAT) -> payload.ParsedRequest:
    return payload.parse(endpoint, msgspec.json.encode(body))


def prefill(body: Any) -> dict[str, Any]:
    return msgspec.json.decode(payload.prefill_leg(parsed(body)))


def decode(body: Any) -> dict[str, Any]:
    return msgspec.json.decode(payload.decode_leg(parsed(body), HANDLE))


def test_min_tokens_never_exceeds_the_one_token_of_the_prefill_leg():
    """Case 1."""
    body = {"prompt": "x", "max_tokens": 50, "min_tokens": 20}
    assert prefill(body)["max_tokens"] == prefill(body)["min_tokens"] == 1
    assert (decode(body)["max_tokens"], decode(body)["min_tokens"]) == (50, 20)


def test_stream_options_stay_on_the_decode_leg_only():
    """Case 4."""
    body = {"messages": [], "stream": True, "stream_options": {"include_usage": True}, "max_completion_tokens": 9}
    assert "stream_options" not in prefill(body)
    assert prefill(body)["stream"] is False
    assert prefill(body)["max_completion_tokens"] == 1
    assert decode(body) == {**body, "kv_transfer_params": HANDLE}


@pytest.mark.parametrize(
    "constraint",
    [
        {"tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}},
        {"structured_outputs": {"regex": "a+"}},
    ],
)
def test_the_prefill_leg_drops_output_constraints_and_keeps_what_shapes_the_prompt(constraint):
    """Case 6."""
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    kept = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "chat_template_kwargs": {"a": 1}}
    leg = prefill({**kept, **constraint})
    assert all(leg[key] == value for key, value in kept.items())
    assert leg.get("tool_choice", "auto") == "auto"
    assert not {"response_format", "structured_outputs"} & leg.keys()
    assert parsed({**kept, **constraint}).constrained
    assert decode({**kept, **constraint}) == {**kept, **constraint, "kv_transfer_params": HANDLE}


def test_a_model_whose_template_reads_the_constraint_is_deflected():
    """Case 6: dropping it would change the prompt."""
    body = {"model": "moonshotai/Kimi-K3", "messages": [], "tool_choice": "required"}
    assert parsed(body).two_leg_obstacle == "constraint-shapes-prompt"
    assert parsed({**body, "tool_choice": "auto"}).two_leg_obstacle == ""


@pytest.mark.parametrize("value", ["none", "auto", None])
def test_a_tool_choice_that_forces_nothing_is_left_alone(value):
    assert prefill({"messages": [], "tool_choice": value})["tool_choice"] == value


@pytest.mark.parametrize(
    ("body", "obstacle"),
    [
        ({"n": 3}, "n"),
        ({"n": "2"}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "beam-search"),
        ({"prompt_logprobs": 0}, "prompt-logprobs"),
        ({"echo": True, "logprobs": 2}, "echo-with-logprobs"),
        ({"prompt": ["a", "b"]}, "several-prompts"),
        ({"prompt": [[1, 2], [3]]}, "several-prompts"),
        ({"prompt_embeds": "abc"}, "prompt-embeds"),
        ({"max_tokens": 0, "echo": True}, "no-output"),
        ({"truncate_prompt_tokens": -1}, "truncated-to-context"),
        ({"n": 1, "best_of": None, "use_beam_search": False, "echo": True}, ""),
        ({"prompt": ["a"]}, ""),
        ({"prompt": [1, 2, 3]}, ""),
        ({"prompt": []}, ""),
        ({"echo": True, "logprobs": None}, ""),
        ({"truncate_prompt_tokens": 100}, ""),
    ],
)
def test_what_two_legs_cannot_carry(body, obstacle):
    """Cases 10 and 11, and other fields whose meaning would differ between the legs."""
    assert parsed({"prompt": "x", **body}, Endpoint.COMPLETIONS).two_leg_obstacle == obstacle


def test_every_obstacle_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "requests.md").read_text()
    assert all(f"`{name}`" in text for _, name, _ in payload._OBSTACLES)


def test_media_parts_are_identical_on_both_legs():
    """Case 14."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}, "uuid": "img-7"}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "what?"}]}]
    body = {"model": "m", "messages": messages, "mm_processor_kwargs": {"a": 1}}
    for leg in (prefill(body), decode(body)):
        assert leg["messages"] == messages
        assert leg["mm_processor_kwargs"] == {"a": 1}


@pytest.mark.parametrize(
    "injected",
    [
        {"kv_transfer_params": {"do_remote_prefill": True}},
        {"kairos": {"schema": 1, "chunk_schedule": [1]}},
        {"do_local_prefill": True},
        {"vllm_xargs": {"kv_transfer_params": "x", "kept": 1}},
        {"extra_args": {"kv_transfer_params": {"kairos": {}}}},
        {"sampling_params": {"extra_args": {"kv_transfer_params": {}}}},
    ],
)
def test_clients_cannot_inject_transfer_parameters(injected):
    body = {"prompt": "x", "max_tokens": 4, **injected}
    request = parsed(body)
    for leg in (
        payload.prefill_leg(request),
        payload.decode_leg(request, {"mine": 1}),
        payload.deflected_leg(request, SCHEDULE),
    ):
        sent = msgspec.json.decode(leg)
        mine = sent.pop("kv_transfer_params")
        assert mine.keys() <= {"mine", "kairos", *payload._PREFILL_PARAMS}
        assert not payload._forbidden_paths(sent)
    assert b"kv_transfer_params" not in payload.deflected_leg(request, None)
    assert not payload._forbidden_paths(msgspec.json.decode(payload.without_client_params(request.raw)))


def test_an_escaped_key_is_still_found():
    request = payload.parse(Endpoint.CHAT, rb'{"messages": [], "kv\u005ftransfer_params": {"x": 1}}')
    assert not request.clean
    assert msgspec.json.decode(payload.deflected_leg(request, None)) == {"messages": []}


def test_the_deflected_leg_carries_the_schedule_alone():
    sent = msgspec.json.decode(payload.deflected_leg(parsed({"prompt": "x"}), SCHEDULE))
    assert sent["kv_transfer_params"] == {"kairos": {"schema": 1, "chunk_schedule": [512, 512, 512, 128]}}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"1", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_body_that_is_not_an_object_is_refused(raw):
    with pytest.raises(RequestError, match="request body must be"):
        payload.parse(Endpoint.CHAT, raw)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.text(max_size=10), _JSON, max_size=6), st.dictionaries(st.text(max_size=10), _JSON, max_size=4))
def test_the_decode_leg_is_the_clients_body_plus_the_handle(body, handle):
    """Case 49: field for field, unknown fields included."""
    request = parsed(body)
    expected = {**payload._without_forbidden(body), "kv_transfer_params": handle}
    assert msgspec.json.decode(payload.decode_leg(request, handle)) == expected


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(["prompt", "n", "max_tokens", "min_tokens", "stream", "seed", "x"]), _JSON, max_size=6))
def test_the_prefill_leg_never_streams_and_never_runs_two_tokens(body):
    leg = prefill(body)
    assert leg["stream"] is False
    assert leg["max_tokens"] == 1
    assert leg.get("min_tokens") in (None, 0, 1, False, "", [], {}, 0.0) or leg["min_tokens"] == 1
    assert leg.get("prompt") == body.get("prompt")


def test_the_release_of_a_handle_computes_nothing():
    sent = msgspec.json.decode(payload.release_leg(HANDLE))
    assert sent["kv_transfer_params"] == HANDLE
    assert sent["model"] == payload.RELEASE_MODEL
    assert sent["max_tokens"] == 1
