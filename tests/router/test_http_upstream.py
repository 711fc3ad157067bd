"""The pool of connections to servers: reuse, idle ends, the one retry that is safe, requests as they go out."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from kairos_router import http_upstream
from kairos_router.failures import Failure
from kairos_router.http_upstream import HttpUpstream, head_of, origin_of, split_url
from kairos_router.upstream import Call, UpstreamFailure
from tests.router.cluster import until
from vllm_kairos.errors import RequestError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


Answering = Callable[[int], bytes | None]


def always(_: int) -> bool:
    return True


def never(_: int) -> bool:
    return False


@dataclass(slots=True)
class Raw:
    """A server of bytes: request n (from 0) gets `answer(n)`, None: never; then the connection closes if `close_after(n)`."""

    answer: Answering
    close_after: Callable[[int], bool]
    url: str = ""
    connections: int = 0
    open: int = 0
    requests: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self._serve_one(reader, writer):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:")), 0)
        self.requests.append(head + await reader.readexactly(length))
        count = len(self.requests) - 1
        said = self.answer(count)
        if said is None:
            await reader.read()
            return False
        writer.write(said)
        await writer.drain()
        return not self.close_after(count)


@asynccontextmanager
async def raw_server(
    answer: Callable[[int], bytes | None], *, close_after: Callable[[int], bool] = always
) -> AsyncIterator[Raw]:
    raw = Raw(answer, close_after)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    raw.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()
        await until(lambda: raw.open == 0)


def call(raw: Raw, **more: object) -> Call:
    return Call(**{"url": raw.url + "/v1/x", "headers": {}, "body": b"{}", **more})  # type: ignore[arg-type]


async def ask(upstream: HttpUpstream, one: Call) -> bytes:
    async with upstream.send(one) as answer:
        return await answer.read()


async def test_calls_in_turn_share_a_connection_and_calls_at_once_do_not():
    async with raw_server(lambda _: OK, close_after=never) as raw, HttpUpstream() as upstream:
        for _ in range(3):
            assert await ask(upstream, call(raw)) == b"ok"
        assert raw.connections == 1
        await asyncio.gather(*(ask(upstream, call(raw)) for _ in range(3)))
        assert raw.connections == 3


async def test_closing_closes_idle_connections():
    async with raw_server(lambda _: OK, close_after=never) as raw:
        async with HttpUpstream() as upstream:
            await ask(upstream, call(raw))
            assert raw.open == 1
        await until(lambda: raw.open == 0)


async def test_idle_connections_are_dropped_in_time():
    async with raw_server(lambda _: OK, close_after=never) as raw, HttpUpstream(keepalive_s=0.02) as upstream:
        await ask(upstream, call(raw))
        await until(lambda: raw.open == 0)
        assert await ask(upstream, call(raw)) == b"ok"
        assert raw.connections == 2
        await until(lambda: raw.open == 0 and upstream._sweep is None)
        assert upstream._idle == {}


async def test_a_server_that_closed_the_idle_connection_is_asked_once():
    async with raw_server(lambda _: OK) as raw, HttpUpstream() as upstream:
        for _ in range(5):
            assert await ask(upstream, call(raw)) == b"ok"
            await asyncio.sleep(0.005)
        assert len(raw.requests) == 5


async def test_a_reused_connection_that_ends_without_a_byte_costs_a_second_try():
    answers = (OK, b"", OK)
    async with raw_server(answers.__getitem__, close_after=lambda count: count == 1) as raw, HttpUpstream() as upstream:
        for _ in range(2):
            assert await ask(upstream, call(raw)) == b"ok"
        assert (len(raw.requests), raw.connections) == (3, 2)


async def test_a_fresh_connection_that_ends_without_a_byte_is_a_reset():
    async with raw_server(lambda _: b"") as raw, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="reset: server closed the connection"):
            await ask(upstream, call(raw))
        assert len(raw.requests) == 1


@pytest.mark.parametrize("begun", [b"HTTP/1.1 20", b"nonsense\r\n\r\n"])
async def test_an_answer_that_began_is_never_asked_for_again(begun):
    async with (
        raw_server(lambda count: begun if count else OK, close_after=lambda count: count > 0) as raw,
        HttpUpstream() as upstream,
    ):
        await ask(upstream, call(raw))
        with pytest.raises(UpstreamFailure, match="reset") as failed:
            await ask(upstream, call(raw))
        assert failed.value.failure is Failure.RESET
        assert len(raw.requests) == 2


async def test_a_body_that_breaks_off_is_broken():
    async with raw_server(lambda _: OK[:-1]) as raw, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="broken"):
            await ask(upstream, call(raw))


async def test_leaving_before_the_end_closes_the_connection():
    async with raw_server(lambda _: OK[:-1], close_after=never) as raw, HttpUpstream() as upstream:
        async with upstream.send(call(raw)) as answer:
            assert answer.status == 200
        await until(lambda: raw.open == 0)


@pytest.mark.parametrize("body_bytes", [2, 50_000_000])
async def test_cancelling_closes_the_connection_also_while_the_request_is_being_sent(body_bytes):
    async with raw_server(lambda _: None) as raw, HttpUpstream() as upstream:
        asking = asyncio.create_task(ask(upstream, call(raw, body=b"x" * body_bytes)))
        await until(lambda: raw.open == 1)
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
        await until(lambda: raw.open == 0)
        assert upstream._idle == {}


@pytest.mark.parametrize("said", [b"HTTP/1.1 101 S\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", b"HTTP/1.1 999 X\r\n\r\n"])
async def test_a_status_that_is_none_of_an_answer_is_a_reset(said):
    async with raw_server(lambda _: said) as raw, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="none of an answer"):
            await ask(upstream, call(raw))


async def test_a_connection_that_takes_too_long_is_refused(monkeypatch):
    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(http_upstream, "CONNECT_TIMEOUT_S", 0.01)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    async with HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match=r"refused: no connection within 0\.01 s"):
            await ask(upstream, Call(url="http://127.0.0.1:9/x", headers={}))


async def test_a_server_without_tls_refuses_https(monkeypatch):
    monkeypatch.setattr(http_upstream, "CONNECT_TIMEOUT_S", 0.1)
    async with raw_server(lambda _: OK, close_after=never) as raw, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="refused"):
            await ask(upstream, call(raw, url=raw.url.replace("http:", "https:") + "/"))


async def test_an_answer_longer_than_the_limit_is_broken(monkeypatch):
    monkeypatch.setattr(http_upstream, "MAX_ANSWER_BYTES", 1)
    async with raw_server(lambda _: OK) as raw, HttpUpstream() as upstream:
        with pytest.raises(UpstreamFailure, match="longer than 1 bytes"):
            await ask(upstream, call(raw))


async def test_a_head_request_has_no_body_and_a_get_no_length():
    async with raw_server(lambda _: OK[:-2], close_after=never) as raw, HttpUpstream() as upstream:
        assert await ask(upstream, call(raw, method="HEAD", body=b"")) == b""
        assert b"content-length" not in raw.requests[0]


def test_a_request_goes_out_as_it_was_given():
    url = "http://[::1]:8000/v1/a%20b?q=%C3%A9"
    origin, target = split_url(url)
    sent = head_of(Call(url=url, headers={"x-a": "\xe9\udcff", "accept": "a/b"}, body=b"{}"), origin, target)
    lines = [
        b"POST /v1/a%20b?q=%C3%A9 HTTP/1.1",
        b"host: [::1]:8000",
        b"x-a: \xc3\xa9\xff",
        b"accept: a/b",
        b"content-length: 2",
    ]
    assert sent == b"\r\n".join([*lines, b"", b""])


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_only_a_method_that_brings_a_body_says_that_there_is_none(method):
    sent = head_of(Call(url="http://h:80/", headers={}, method=method), origin_of("http://h:80"), "/")
    assert (b"content-length: 0" in sent, b"host: h\r\n" in sent) == (method == "POST", True)


@pytest.mark.parametrize(
    ("headers", "target"),
    [({"x-a": "b\r\nx-b: c"}, "/"), ({"x\n": "b"}, "/"), ({}, "/ HTTP/1.1"), ({}, "/\n"), ({"a": "\0"}, "/")],
)
def test_nothing_that_would_split_a_head_goes_out(headers, target):
    with pytest.raises(RequestError, match="no line break"):
        head_of(Call(url="http://h:80" + target, headers=headers), origin_of("http://h:80"), target)


def test_https_is_told_from_http():
    assert (origin_of("https://h").port, origin_of("https://h").tls, origin_of("https://h:443").authority) == (443, True, "h")
    assert split_url("http://h:1") == (origin_of("http://h:1"), "/")
