"""What a stream says, whatever pieces it comes in."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_kairos.replay.stream import AnswerStream, StreamError

DONE = b"data: [DONE]\n\n"


def _event(**body: Any) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _text(text: str, **more: Any) -> bytes:
    return _event(choices=[{"index": 0, "text": text}], **more)


def _delta(delta: Any, **more: Any) -> bytes:
    return _event(choices=[{"index": 0, "delta": delta}], **more)


def _counted(total: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": 5, "completion_tokens": total}}


def _read(*timed: tuple[float, bytes]) -> AnswerStream:
    stream = AnswerStream()
    for at_s, received in timed:
        stream.feed(received, at_s)
    stream.close(timed[-1][0])
    return stream


def test_94_a_role_is_no_token():
    stream = _read((0.01, _delta({"role": "assistant", "content": ""})), (0.5, _delta({"content": "Hi"})), (0.6, DONE))
    assert [arrival.at_s for arrival in stream.arrivals] == [0.5]


def test_94_a_role_is_no_token_where_every_chunk_states_its_usage():
    role = _delta({"role": "assistant", "content": ""}, **_counted(0))
    stream = _read((0.01, role), (0.5, _delta({"content": "Hi"}, **_counted(1))), (0.6, DONE))
    assert [arrival.at_s for arrival in stream.arrivals] == [0.5]


def test_a_token_without_text_counts_where_every_chunk_states_its_usage():
    stream = _read((1, _text("a", **_counted(1))), (2, _text("", **_counted(2))), (3, _text("b", **_counted(3))), (4, DONE))
    assert [(arrival.at_s, arrival.tokens) for arrival in stream.arrivals] == [(1, 1), (2, 1), (3, 1)]


def test_95_tokens_are_counted_from_usage():
    final = _event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 10})
    stream = _read((1.0, _text("a")), (1.5, _text("bcde")), (2.0, _text("fghij")), (2.1, final), (2.1, DONE))
    assert stream.output_tokens == 10
    assert [arrival.at_s for arrival in stream.arrivals] == [1.0, 1.5, 2.0]
    without = _read((1.0, _text("a")), (1.5, _text("bcde")), (2.0, DONE))
    assert without.output_tokens == 2


def test_95_each_arrival_has_its_tokens_where_the_server_counts_them():
    stream = _read(
        (1.0, _text("a", **_counted(1))), (1.5, _text("bcde", **_counted(5))), (2.0, _text("f", **_counted(10)) + DONE)
    )
    assert [arrival.tokens for arrival in stream.arrivals] == [1, 4, 5]


def test_95_a_tool_call_is_content():
    call = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    stream = _read((1.0, _delta({"tool_calls": []})), (3.0, _delta({"tool_calls": call})), (3.1, DONE))
    assert [arrival.at_s for arrival in stream.arrivals] == [3.0]


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_23_events_split_and_joined_are_seen_once_each(newline):
    whole = (_text("a") + b": ping\n\n" + _text("b") + _event(choices=[], **_counted(2)) + DONE).replace(b"\n", newline)
    by_byte = _read(*((float(at), whole[at : at + 1]) for at in range(len(whole))))
    assert (len(by_byte.arrivals), by_byte.output_tokens, by_byte.prompt_tokens) == (2, 2, 5)
    at_once = _read((1.0, whole))
    assert (len(at_once.arrivals), at_once.output_tokens) == (1, 2)


@given(cuts=st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=30)
def test_23_cuts_change_nothing(cuts):
    whole = _text("a", **_counted(1)) + _text("b", **_counted(2)) + DONE
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    stream = _read(*((float(at), whole[start:end]) for at, (start, end) in enumerate(pairwise(edges))))
    assert (stream.output_tokens, stream.is_done, sum(arrival.tokens for arrival in stream.arrivals)) == (2, True, 2)


def test_27_unusual_but_complete_endings():
    merged = _event(choices=[{"index": 0, "text": "b", "finish_reason": "length"}], **_counted(2))
    for ending in (DONE, b"data: [DONE]\n", b"data: [DONE]", b"data:[DONE]\r\n\r\n"):
        stream = _read((1.0, _text("a")), (2.0, merged), (2.0, ending))
        assert (stream.finish_reason, stream.output_tokens, len(stream.arrivals)) == ("length", 2, 2)


def test_27_a_finish_that_brings_usage_brings_no_token():
    finish = _event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], **_counted(1))
    assert [arrival.at_s for arrival in _read((1.0, _delta({"content": "a"})), (9.0, finish), (9.0, DONE)).arrivals] == [1.0]


@pytest.mark.parametrize(
    ("received", "kind"),
    [
        (_text("a"), "truncated"),
        (_text("a") + _event(error={"message": "decode died"}) + DONE, "error_event"),
        (_text("a") + b"data: {not json\n\n", "malformed"),
        (_event(choices=[], **_counted(0)) + DONE, "no_tokens"),
        (_event(choices=[{"text": "a"}], **_counted(-5)) + DONE, "malformed"),
        (b'data: {"choices": [{"delta": {"content": ' + b"[" * 100_000 + b"\n\n", "malformed"),
        (b'data: {"unknown": ' + b"[" * 100_000 + b"\n\n", "malformed"),
    ],
)
def test_26_a_stream_that_is_no_whole_answer_has_failed(received, kind):
    with pytest.raises(StreamError) as failure:
        _read((1.0, received))
    assert failure.value.kind == kind
