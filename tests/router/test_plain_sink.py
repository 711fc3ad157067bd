"""What a client's answer looks like on the wire, and in how many pieces it is sent."""

import pytest

from kairos_router.plain_sink import PlainSink

EVENTS = {"content-type": "text/event-stream"}


class Kept:
    """A connection that keeps each write, or whose client is gone."""

    def __init__(self, *, gone: bool = False) -> None:
        self.writes: list[bytes] = []
        self.gone, self.closed = gone, False

    def write(self, *data: bytes) -> None:
        if self.gone:
            raise ConnectionResetError("gone")
        self.writes.append(b"".join(data))

    async def drained(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def parts(raw: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Status line, headers and body."""
    head, _, body = raw.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    return line, dict(field.split(b": ", 1) for field in fields), body


async def test_a_whole_answer_is_one_write():
    wire = Kept()
    sink = PlainSink(wire)
    assert (sink.started, sink.status) == (False, 500)
    await sink.whole(201, {"x-a": "b\tü\udcff"}, b"body")
    (raw,) = wire.writes
    line, fields, body = parts(raw)
    assert (line, body, fields[b"content-length"]) == (b"HTTP/1.1 201 Created", b"body", b"4")
    assert (fields[b"content-type"], fields[b"x-a"]) == (b"application/octet-stream", b"b\t\xc3\xbc\xff")
    assert (sink.started, sink.status) == (True, 201)


async def test_a_stream_that_is_one_part_is_one_write():
    wire = Kept()
    sink = PlainSink(wire)
    await sink.start(200, EVENTS)
    await sink.finish(b"data: 1\n\n")
    (raw,) = wire.writes
    _, fields, body = parts(raw)
    assert (fields[b"transfer-encoding"], body) == (b"chunked", b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")


async def test_a_stream_is_written_part_by_part():
    wire = Kept()
    sink = PlainSink(wire)
    await sink.start(200, EVENTS)
    assert wire.writes == []
    await sink.write(b"a")
    await sink.write(b"b")
    await sink.finish()
    assert wire.writes[0].endswith(b"\r\n\r\n1\r\na\r\n")
    assert wire.writes[1:] == [b"1\r\nb\r\n", b"0\r\n\r\n"]


@pytest.mark.parametrize(("fields", "end"), [(EVENTS, b"4\r\nlast\r\n"), ({"content-type": "text/plain"}, b"1\r\na\r\n")])
async def test_a_stream_that_is_cut_has_no_end(fields, end):
    wire = Kept()
    sink = PlainSink(wire)
    await sink.start(200, fields)
    await sink.write(b"a")
    await sink.abort(b"last")
    assert wire.writes[-1].endswith(end)
    assert wire.closed


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_says_no_length(status):
    wire = Kept()
    await PlainSink(wire).whole(status, {}, b"")
    (raw,) = wire.writes
    assert b"content-length" not in raw
    assert raw.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "\0"])
async def test_a_header_stays_within_its_line(value):
    wire = Kept()
    with pytest.raises(ValueError, match="line break"):
        await PlainSink(wire).whole(200, {"x": value}, b"")
    assert wire.writes == []


async def test_only_an_answer_that_is_not_all_sent_tells_of_a_client_that_left():
    sink = PlainSink(Kept(gone=True))
    await sink.start(200, EVENTS)
    with pytest.raises(ConnectionError):
        await sink.write(b"a")
    with pytest.raises(ConnectionError):
        await sink.finish(b"a")
    await sink.finish()
    await PlainSink(Kept(gone=True)).whole(200, {}, b"")
