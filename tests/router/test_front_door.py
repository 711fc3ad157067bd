"""Clients' connections: which requests are answered without aiohttp, and that no byte is lost on the way to it."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_router import front_door
from kairos_router.front_door import FrontDoor
from kairos_router.plain_request import MAX_HEAD_BYTES, read_head
from kairos_router.plain_sink import PlainSink
from tests.router.cluster import Cluster, cluster, until
from tests.router.stubs import Reply, chat_events

BODY = b'{"model":"m","prompt":"hi"}'


def request(body: bytes = BODY, line: bytes = b"POST /v1/completions HTTP/1.1", **headers: str) -> bytes:
    """A plain request, unless `line` or a header says otherwise."""
    said = {"host": "x", "content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    return b"\r\n".join((line, *(f"{name}: {value}".encode() for name, value in said.items()), b"", body))


CHUNKED = request(b"1b\r\n" + BODY + b"\r\n0\r\n\r\n", transfer_encoding="chunked").replace(b"content-length: 38\r\n", b"")
OTHERS = [
    request(line=b"GET /v1/completions HTTP/1.1"),
    request(line=b"POST /v1/completions?x=1 HTTP/1.1"),
    request(line=b"POST /v1/completions HTTP/1.0"),
    request(line=b"POST /v1/embeddings HTTP/1.1"),
    request(line=b"POST  /v1/completions HTTP/1.1"),
    request(transfer_encoding="chunked"),
    request(content_encoding="gzip"),
    request(expect="100-continue"),
    request(upgrade="websocket", connection="upgrade"),
    request(connection="close"),
    request(origin="https://a.example"),
    request(Host="again"),
    request(content_length="+27"),
    request(content_length=""),
    request(content_length="9" * 20),
    request(a="\x01"),
    request().replace(b"host: x", b"host : x"),
    request().replace(b"host: x", b" host: x"),
    request().replace(b"\r\n", b"\n"),
    request(a="x" * MAX_HEAD_BYTES),
    b"\r\n" + request(),
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n\r\n",
    b"\x16\x03\x01",
    b"",
]


@pytest.mark.parametrize("raw", OTHERS)
def test_what_is_not_plain_is_left_to_aiohttp(raw):
    assert read_head(raw) is None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_plain_head_is_read(path):
    raw = request(line=f"POST {path} HTTP/1.1".encode(), Connection="Keep-Alive", X_A="\tb c ", X_B="\xff", X_C="")
    head = read_head(raw)
    assert head is not None
    assert (head.path, raw[head.head_bytes :], head.body_bytes) == (path, BODY, len(BODY))
    assert (head.headers["x-a"], head.headers["x-b"], head.headers["x-c"]) == ("b c", "\xff", "")


@given(st.binary(max_size=40), st.integers(0, 90))
def test_no_bytes_break_the_reading_of_a_head(noise, at):
    head = read_head(request()[:at] + noise + request()[at:])
    assert head is None or head.head_bytes > 0


class FakeTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"socket": FakeTransport})
        self.written = b""
        self.protocol: asyncio.Protocol | None = None
        self.closed = self.paused = False

    @staticmethod
    def setsockopt(*_: object) -> None: ...

    def writelines(self, data) -> None:
        self.written += b"".join(data)

    def set_protocol(self, protocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closed

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True

    abort = close


class Fallback(asyncio.Protocol):
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.got = b""

    def data_received(self, data: bytes) -> None:
        self.got += data


async def _feed(pieces: list[bytes], *, pause: bool) -> tuple[list[bytes], bytes]:
    """Give a connection `pieces`; return the bodies that were answered and what the fallback got."""
    answered: list[bytes] = []

    async def take(head, body: bytes, sink: PlainSink) -> None:
        answered.append(body)
        await asyncio.sleep(0)
        await sink.whole(200, {}, body)

    fallback, transport = Fallback(), FakeTransport()
    door = FrontDoor(take, lambda: fallback, limit_bytes=1000)
    transport.protocol = connection = front_door.ClientConnection(door)
    connection.connection_made(transport)
    for piece in pieces:
        transport.protocol.data_received(piece)
        if pause and connection.task is not None:
            await asyncio.wait({connection.task})
    if connection.task is not None:
        await asyncio.wait({connection.task})
    assert transport.written.count(b"HTTP/1.1 200 OK\r\n") == len(answered)
    if not fallback.got and connection._head is not None:
        connection._hand_over_rest()
    await door.close(0)
    return answered, fallback.got


def _cut(raw: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % len(raw) for cut in cuts} - {0})
    return [raw[start:end] for start, end in zip([0, *ends], [*ends, len(raw)], strict=True)]


@given(
    st.lists(st.sampled_from([request(), request(b""), request(b"x" * 70), CHUNKED, OTHERS[0]]), min_size=1, max_size=4),
    st.lists(st.integers(0, 1000), max_size=6),
    st.booleans(),
)
def test_wherever_requests_are_cut_each_is_answered_once_or_handed_over(requests, cuts, pause):
    raw = b"".join(requests)
    answered, handed = asyncio.run(_feed(_cut(raw, cuts), pause=pause))
    assert b"".join(requests[: len(answered)]) + handed == raw
    assert answered == [one.partition(b"\r\n\r\n")[2] for one in requests[: len(answered)]]


@pytest.mark.parametrize("cut", range(1, len(request())))
def test_a_request_in_two_pieces_is_answered_once_its_head_came_whole(cut):
    raw = request()
    answered, handed = asyncio.run(_feed([raw[:cut], raw[cut:]], pause=True))
    head_bytes = len(raw) - len(BODY)
    assert (answered, handed) == (([BODY], b"") if cut >= head_bytes else ([], raw))


def test_requests_one_after_the_other_are_all_answered():
    answered, handed = asyncio.run(_feed([request(), request(b"12"), request()], pause=True))
    assert (answered, handed) == ([BODY, b"12", BODY], b"")


def test_a_body_over_the_limit_is_handed_over():
    long = request(b"x" * 1000)
    assert asyncio.run(_feed([long], pause=True)) == ([], long)


def _address(up: Cluster) -> tuple[str, int]:
    return "127.0.0.1", int(up.url.rpartition(":")[2])


async def _exchange(up: Cluster, *pieces: bytes) -> bytes:
    """Send `pieces`, each in its own turn, close our side, and return all that comes back."""
    reader, writer = await asyncio.open_connection(*_address(up))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.005)
    async with asyncio.timeout(20):
        got = await reader.read()
    writer.close()
    return got


CLOSE = request(connection="close")


@pytest.mark.parametrize(
    "pieces",
    [
        [CLOSE],
        [CLOSE[:20], CLOSE[20:]],
        [request(), CLOSE],
        [request() + request() + CLOSE],
        [CHUNKED + CLOSE],
        [b"\r\n" + CLOSE],
        [request()[:-3], request()[-3:] + CLOSE],
        [request(line=b"POST /v1/completions HTTP/1.0")],
    ],
)
async def test_every_request_on_a_connection_is_answered(pieces):
    async with cluster() as up:
        got = await _exchange(up, *pieces)
        count = b"".join(pieces).count(b"POST ")
        assert got.count(b" 200 OK\r\n") == count
        assert [leg.body["prompt"] for leg in up.decode[0].received] == ["hi"] * count


async def test_a_client_that_waits_for_100_continue_gets_it():
    async with cluster() as up:
        raw = request(expect="100-continue", connection="close")
        got = await _exchange(up, raw[: -len(BODY)], BODY)
        assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        request(content_length="+27"),
        request(a="\x01"),
        request().replace(b"host: x", b"host : x"),
        b"POST /v1/completions\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
async def test_a_malformed_request_is_a_400(raw):
    async with cluster() as up:
        got = await _exchange(up, raw)
        assert got.split(b" ")[1] == b"400"
        assert up.prefill[0].received == []
        assert (await up.complete())[0] == 200


async def test_a_body_that_stays_out_is_a_408(monkeypatch):
    monkeypatch.setattr(front_door, "SLOW_BODY_S", 0.01)
    async with cluster() as up:
        up.parts.front._body_timeout_s = 0.05
        reader, writer = await asyncio.open_connection(*_address(up))
        writer.write(request()[:-1])
        assert (await reader.readline()) == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


async def test_a_client_that_leaves_within_its_body_leaves_nothing():
    async with cluster() as up:
        _, writer = await asyncio.open_connection(*_address(up))
        writer.write(request()[:-1])
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.close()
        assert (await up.complete())[0] == 200
        assert len(up.records()) == 1


async def test_an_answer_says_when_it_was_given_and_how_long_it_is():
    async with cluster() as up, up.session.post(up.url + "/v1/completions", data=BODY) as answer:
        assert answer.headers["content-type"] == "application/json"
        assert int(answer.headers["content-length"]) == len(await answer.read())
        assert answer.headers["date"].endswith(" GMT")


async def test_a_client_that_does_not_read_holds_up_the_stream_it_does_not_read():
    sent = 0
    gate = asyncio.Event()

    def endless(received):
        nonlocal sent
        role, text, *_ = chat_events("x" * 1_000_000)

        class Parts:
            def __iter__(self):
                nonlocal sent
                yield role
                for _ in range(199):
                    sent += 1
                    yield text

        return Reply(parts=Parts(), gate=gate)

    async with cluster(decode=[endless]) as up:
        _, writer = await asyncio.open_connection(*_address(up), limit=1024)
        writer.write(request(b'{"model":"m","messages":[],"stream":true}', line=b"POST /v1/chat/completions HTTP/1.1"))
        await until(lambda: sent > 1)
        while (before := sent) and not await asyncio.sleep(0.2) and sent > before:
            pass
        assert sent < 199, "everything was read into memory"
        writer.transport.abort()
        await up.decode[0].until(lambda stub: stub.cancelled == 1)
        assert [record["status"] for record in up.records()] == [499]


async def test_what_runs_when_the_door_closes_is_given_its_grace():
    gate = asyncio.Event()
    async with cluster(decode=[lambda received: Reply(gate=gate, json={"choices": []})]) as up:
        running = asyncio.create_task(up.complete())
        await up.decode[0].until(lambda stub: stub.active == 1)
        closing = asyncio.create_task(up.door.close(20.0))
        await asyncio.sleep(0.01)
        gate.set()
        assert (await running)[0] == 200
        await closing
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*_address(up))


async def test_an_error_that_nobody_foresaw_is_a_500(monkeypatch):
    async with cluster() as up:
        monkeypatch.setattr(up.parts.router._placement, "decide", lambda job: 1 / 0)
        async with up.session.post(up.url + "/v1/completions", data=BODY) as answer:
            assert answer.status == 500
        monkeypatch.undo()
        assert (await up.complete())[0] == 200
        assert [record["status"] for record in up.records()] == [500, 200]


async def test_idle_connections_are_closed_after_their_time(monkeypatch):
    monkeypatch.setattr(front_door, "IDLE_S", 0.0)
    async with cluster() as up:
        reader, writer = await asyncio.open_connection(*_address(up))
        await asyncio.sleep(0.01)
        up.door._sweep_idle()
        assert await reader.read() == b""
        writer.close()
