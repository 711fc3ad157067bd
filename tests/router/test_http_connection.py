"""One client connection: whatever way the bytes come, the answer is the same, and what is not one is a loss."""

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_router.http_connection import HELD_BYTES, MAX_HEAD_BYTES, ConnectionLost, HttpConnection

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: b\r\n\r\n5\r\nhello\r\n1;note=x\r\n!\r\n0\r\nX-Late: t\r\n\r\n"
)
SIZED = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nX-A: b\r\n\r\nhello!"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + SIZED


class FakeTransport(asyncio.Transport):
    """Takes what is written and notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.paused = self.aborted = False
        self.unsent_bytes = 0

    def writelines(self, parts: Iterable[Any]) -> None:
        self.written += parts

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.aborted

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes


def asked(*, head_only: bool = False) -> tuple[HttpConnection, FakeTransport]:
    """A connection that has sent a request."""
    connection, transport = HttpConnection(), FakeTransport()
    connection.connection_made(transport)
    connection.send(b"GET / HTTP/1.1\r\n\r\n", head_only=head_only)
    return connection, transport


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of what has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


def lost(connection: HttpConnection, exc: Exception | None = None) -> None:
    connection.connection_lost(exc)


def body_of(connection: HttpConnection) -> bytes:
    parts = []
    while part := at_once(connection.part()):
        parts.append(part)
    return b"".join(parts)


def answer_of(connection: HttpConnection) -> tuple[int, bytes]:
    """Status and body."""
    return at_once(connection.head()).status, body_of(connection)


def pieces(raw: bytes, cuts: Iterable[int]) -> list[bytes]:
    at = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    return [raw[low:high] for low, high in pairwise(at)]


@pytest.mark.parametrize("raw", [CHUNKED, SIZED, CONTINUED])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_an_answer_is_the_same_however_it_was_cut(raw, size):
    for first in range(len(raw)):
        connection, _ = asked()
        for piece in (raw[:first], *(raw[at : at + size] for at in range(first, len(raw), size))):
            if piece:
                connection.data_received(piece)
        assert at_once(connection.head()).status == 200
        assert connection.headers["x-a"] == "b"
        assert not {"x-late", "link"} & set(connection.headers)
        assert body_of(connection) == b"hello!"
        assert connection.reusable


@pytest.mark.parametrize("raw", [CHUNKED, SIZED, CONTINUED])
def test_an_end_at_any_byte_before_the_last_is_a_loss(raw):
    for end in range(len(raw)):
        connection, _ = asked()
        if end:
            connection.data_received(raw[:end])
        lost(connection)
        with pytest.raises(ConnectionLost, match="server closed the connection"):
            answer_of(connection)
        assert connection.heard is (end > 0)
        assert not connection.reusable


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    st.sampled_from(["chunked", "sized", "until-close"]),
    st.lists(st.integers(0, 10_000), max_size=8),
    st.integers(1, 3),
)
def test_any_body_comes_whole_and_the_connection_serves_again_unless_its_close_was_the_end(chunks, framing, cuts, rounds):
    body = b"".join(chunks)
    head = {
        "chunked": b"transfer-encoding: chunked\r\n",
        "sized": b"content-length: %d\r\n" % len(body),
        "until-close": b"",
    }[framing]
    coded = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    raw = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n" + (coded if framing == "chunked" else body)
    connection, transport = asked()
    for turn in range(rounds if framing != "until-close" else 1):
        if turn:
            assert connection.reusable
            connection.send(b"again")
        for piece in pieces(raw, cuts):
            connection.data_received(piece)
        if framing == "until-close":
            lost(connection)
        assert at_once(connection.head()).status == 200
        assert body_of(connection) == body
        assert at_once(connection.part()) == b"", "the end stays the end"
    assert connection.reusable is (framing != "until-close")
    assert not transport.aborted


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from([b"", SIZED[:40], CHUNKED[:70], CHUNKED[:80]]))
def test_no_bytes_do_worse_than_a_loss(noise, before):
    connection, _ = asked()
    for data in (before, *noise):
        if data:
            connection.data_received(data)
    lost(connection)
    with suppress(ConnectionLost):
        answer_of(connection)
    assert not connection.reusable


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 nonsense\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ],
)
def test_a_malformed_answer_is_a_loss_that_says_so(raw):
    connection, transport = asked()
    connection.data_received(raw)
    assert transport.aborted
    with pytest.raises(ConnectionLost, match="malformed answer"):
        answer_of(connection)


@pytest.mark.parametrize(
    ("status", "more"), [(204, b""), (304, b""), (200, b"content-length: 0\r\n"), (304, b"content-length: 9\r\n")]
)
def test_an_answer_without_a_body_ends_with_its_head(status, more):
    connection, _ = asked()
    connection.data_received(b"HTTP/1.1 %d X\r\n%s\r\n" % (status, more))
    assert (at_once(connection.head()).status, body_of(connection)) == (status, b"")


def test_the_answer_to_a_head_request_has_no_body_whatever_its_length_says():
    connection, _ = asked(head_only=True)
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n")
    assert (at_once(connection.head()).headers["content-length"], body_of(connection)) == ("6", b"")
    assert not connection.reusable


@pytest.mark.parametrize("version_and_header", [(b"1.1", b"Connection: close\r\n"), (b"1.0", b"")])
def test_a_connection_that_the_server_will_close_is_not_used_again(version_and_header):
    version, header = version_and_header
    connection, _ = asked()
    connection.data_received(b"HTTP/%s 200 OK\r\ncontent-length: 1\r\n%s\r\nx" % (version, header))
    assert body_of(connection) == b"x"
    assert not connection.reusable


@pytest.mark.parametrize("apart", [False, True])
def test_bytes_that_nothing_asked_for_spoil_the_connection_not_the_answer(apart):
    connection, _ = asked()
    for data in (SIZED, SIZED) if apart else (SIZED + SIZED,):
        connection.data_received(data)
    assert body_of(connection) == b"hello!"
    assert not connection.reusable


def test_an_answer_that_came_before_its_request_was_sent_spoils_the_connection():
    connection, transport = asked()
    transport.unsent_bytes = 1
    connection.data_received(SIZED)
    assert body_of(connection) == b"hello!"
    assert not connection.reusable


def test_an_upgrade_that_nobody_asked_for_is_told_by_its_status():
    connection, _ = asked()
    connection.data_received(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw")
    assert at_once(connection.head()).status == 101
    assert not connection.reusable


@pytest.mark.parametrize("raw", [b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES, b"HTTP/1.1 100 Continue\r\n\r\n" * 4000])
def test_a_head_without_end_is_a_loss(raw):
    connection, transport = asked()
    connection.data_received(raw)
    assert transport.aborted
    with pytest.raises(ConnectionLost, match="head of the answer is longer"):
        at_once(connection.head())


def test_an_empty_header_keeps_its_neighbours():
    connection, _ = asked()
    connection.data_received(
        b"HTTP/1.1 200 OK\r\nX-Empty:\r\nContent-Type: a\xc3\xa9\xff\r\nx-empty: \r\ncontent-length: 0\r\n\r\n"
    )
    assert at_once(connection.head()).headers == {"x-empty": "", "content-type": "a\xe9\udcff", "content-length": "0"}


def test_a_server_is_not_read_from_while_much_of_its_body_waits():
    connection, transport = asked()
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (HELD_BYTES + 2))
    connection.data_received(b"x" * HELD_BYTES)
    assert not transport.paused
    connection.data_received(b"x")
    assert transport.paused
    assert len(at_once(connection.part())) == HELD_BYTES + 1
    assert not transport.paused
    connection.data_received(b"x")
    assert body_of(connection) == b"x"
    assert connection.reusable


def test_a_body_that_came_before_the_loss_is_had_before_it_is_told():
    connection, _ = asked()
    connection.data_received(CHUNKED[:-15])
    lost(connection, ConnectionResetError("reset by peer"))
    assert at_once(connection.part()) == b"hello!"
    with pytest.raises(ConnectionLost, match="reset by peer"):
        at_once(connection.part())


def test_an_aborted_connection_stays_lost():
    connection, transport = asked()
    connection.abort()
    assert transport.aborted
    lost(connection)
    with pytest.raises(ConnectionLost, match="closed"):
        at_once(connection.head())


async def test_waiting_ends_with_what_comes_and_a_cancelled_wait_leaves_nothing():
    connection, _ = asked()
    waiting = asyncio.create_task(connection.head())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    head, part = asyncio.create_task(connection.head()), None
    for byte in SIZED:
        await asyncio.sleep(0)
        connection.data_received(bytes([byte]))
        if head.done() and part is None:
            part = asyncio.create_task(connection.part())
    assert (await head).status == 200
    assert await cast("asyncio.Task[bytes]", part) + body_of(connection) == b"hello!"


async def test_a_loss_ends_the_wait():
    connection, _ = asked()
    waiting = asyncio.create_task(connection.head())
    await asyncio.sleep(0)
    lost(connection, OSError("gone"))
    with pytest.raises(ConnectionLost, match="gone"):
        await waiting
