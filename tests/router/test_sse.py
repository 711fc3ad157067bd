"""Event streams: each event is seen once however the bytes were cut, and the bytes stay as they were."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_router import sse
from kairos_router.sse import EventSplitter, StreamScanner
from tests.router.stubs import chat_events, event

_END = st.sampled_from([b"\n\n", b"\r\n\r\n"])
_LINE = st.binary(min_size=1, max_size=12).map(lambda raw: b"data: " + raw.replace(b"\n", b"").replace(b"\r", b""))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(_LINE, _END), max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_events_are_the_same_however_the_stream_was_cut(events, cuts):
    """Case 23."""
    stream = b"".join(line + end for line, end in events)
    splitter, got, at, turn = EventSplitter(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        got += splitter.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert got == [line + end for line, end in events]
    assert splitter.finish() == b""


_EVENTS = st.sampled_from(
    [
        *chat_events("a", "b"),
        b"data: \n\n",
        b"data:\n\n",
        b"data: [DONE] \n\n",
        b": ping\n\n",
        b"\n",
        b"event: x\ndata: {}\n\n",
        b"data: {\ndata: }\n\n",
        b'data: {"error": {"code": 400}}\r\n\r\n',
        b'data: {"error": null, "kv_transfer_params": {"a": 1}}\n\n',
        b'data: {"choices": [{"text": "data: x"}]}\n\n',
    ]
)


def _account(scanner: StreamScanner) -> tuple[object, ...]:
    return scanner.events, scanner.text_events, scanner.saw_done, scanner.error, scanner.finish_reason, scanner.usage


@given(st.lists(_EVENTS, max_size=8), st.lists(st.integers(0, 400), max_size=4))
def test_the_account_is_the_same_however_the_stream_was_cut(events, cuts):
    stream = b"".join(events)
    whole, cut, slow = StreamScanner(), StreamScanner(), StreamScanner()
    ends = sorted({*cuts, len(stream)})
    got = [
        whole.feed(stream) + whole.finish(),
        b"".join(cut.feed(stream[start:end]) for start, end in zip([0, *ends], ends, strict=False)) + cut.finish(),
        b"".join(slow.feed(stream[at : at + 1]) for at in range(len(stream))) + slow.finish(),
    ]
    assert got[0] == got[1] == got[2]
    assert _account(whole) == _account(cut) == _account(slow)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_the_scanner_returns_every_byte_and_counts_each_event_once(newline, size):
    """Case 23."""
    stream = b"".join(chat_events("a", "b", "c")).replace(b"\n", newline)
    scanner = StreamScanner()
    out = b"".join(scanner.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + scanner.finish()
    assert out == stream
    assert scanner.text_events == 3
    assert scanner.usage is not None
    assert scanner.usage.completion_tokens == 3
    assert scanner.saw_done


def test_the_role_chunk_is_not_text():
    """Case 94."""
    role, text, *_ = chat_events("x")
    scanner = StreamScanner()
    scanner.feed(role)
    assert not scanner.saw_text
    scanner.feed(text)
    assert scanner.saw_text


@pytest.mark.parametrize(
    "delta", [{"content": "x"}, {"reasoning": "x"}, {"reasoning_content": "x"}, {"tool_calls": [{"index": 0}]}]
)
def test_every_kind_of_output_is_text(delta):
    scanner = StreamScanner()
    scanner.feed(event({"choices": [{"delta": delta}]}))
    assert scanner.saw_text


@pytest.mark.parametrize(
    "ending",
    [
        [event({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}), b"data: [DONE]\n\n"],
        [event({"choices": [{"text": "x", "finish_reason": "length"}]}), event({"choices": [], "usage": {"prompt_tokens": 1}})],
        [event({"choices": [{"text": "x"}]}), b"data: [DONE]"],
        [event({"choices": [{"text": "x"}]}), b"data:[DONE]\r\n\r\n"],
    ],
)
def test_unusual_endings_are_complete(ending):
    """Case 27."""
    scanner = StreamScanner()
    out = b"".join(scanner.feed(part) for part in ending) + scanner.finish()
    assert out == b"".join(ending)
    assert scanner.complete


def test_a_stream_that_only_stops_is_not_complete():
    """Case 26."""
    scanner = StreamScanner()
    scanner.feed(event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]}))
    assert not scanner.complete


def test_engine_ids_are_taken_out_and_the_rest_of_the_event_stays():
    answer = {"id": "r", "response": {"id": "x", "kv_transfer_params": {"remote_host": "10.0.0.7"}}}
    scanner = StreamScanner()
    out = scanner.feed(b"event: response.completed\ndata: " + msgspec.json.encode(answer) + b"\n\n" + b": ping\n\n")
    assert out == b'event: response.completed\ndata: {"id":"r","response":{"id":"x"}}\n\n: ping\n\n'
    assert scanner.feed(event({"kv_transfer_params": None, "choices": []})) == b'data: {"choices":[]}\n\n'


@pytest.mark.parametrize(
    "data", [b"data: not json\n\n", b"data: 5\n\n", b'data: {"choices": "x"}\n\n', b"\n\n", b"event: x\n\n"]
)
def test_what_is_not_an_answer_passes_unread(data):
    scanner = StreamScanner()
    assert scanner.feed(data) == data
    assert not scanner.saw_text


def test_an_error_inside_a_stream_is_seen():
    scanner = StreamScanner()
    scanner.feed(sse.error_event("m", "t", 502))
    assert scanner.error == sse.data_of(sse.error_event("m", "t", 502))


def test_an_event_without_end_is_not_held_for_ever(monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 64)
    splitter = EventSplitter()
    assert b"".join(splitter.feed(b"x" * 65)) == b"x" * 65


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"\n", b"\n\n", b"\r", b"\r\n", b"data: ", b"data:", b"x", b": note", b"data: y\n\n"]), max_size=12
    )
)
def test_bytes_of_any_kind_are_cut_alike_at_once_and_one_by_one(parts):
    stream = b"".join(parts)
    one_by_one = EventSplitter()
    singly = [found for at in range(len(stream)) for found in one_by_one.feed(stream[at : at + 1])]
    at_once = EventSplitter()
    assert at_once.feed(stream) == singly
    assert at_once.finish() == one_by_one.finish()


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data: x\ndata: y\n\n", b"x\ny"),
        (b": note\ndata: x\n\n", b"x"),
        (b"data: x\nid: 1\n\n", b"x"),
        (b"data: x", b"x"),
        (b"data: \n\n", b""),
        (b"\n\n", b""),
    ],
)
def test_the_data_of_an_event_is_that_of_its_data_lines(raw, data):
    assert sse.data_of(raw) == data
