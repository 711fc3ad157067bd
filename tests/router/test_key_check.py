"""Clients' bearer keys: who is asked, what is remembered, and what a client is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos_router.config import KeyCheckSettings
from kairos_router.key_check import KeyCheck, ShortMemory, bearer_key, verdict
from kairos_router.refusal import Refusal
from kairos_router.upstream import Call, UpstreamFailure
from tests.router.cluster import cluster
from tests.router.stubs import Received, Reply, running

GOOD, BAD = "Bearer good", "Bearer bad"


@dataclass
class Status:
    status: int
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Urls:
    """An upstream that plays the validation URLs: a status each, a failure to raise, None to hang."""

    said: dict[str, dict[str, int] | UpstreamFailure | None]
    asked: list[tuple[str, str]] = field(default_factory=list)

    @asynccontextmanager
    async def send(self, call: Call) -> AsyncIterator[Status]:
        assert call.method == "GET"
        self.asked.append((call.url, call.headers["authorization"]))
        await asyncio.sleep(0)
        says = self.said[call.url]
        if says is None:
            await asyncio.Event().wait()
        if isinstance(says, UpstreamFailure):
            raise says
        yield Status(says.get(call.headers["authorization"], 401))


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


DOWN = UpstreamFailure("refused", "no connection")  # type: ignore[arg-type]
KNOWS = {GOOD: 200}


def check_of(urls: Urls, clock: Clock | None = None, *, own_key: str | None = None, **settings: float) -> KeyCheck:
    made = KeyCheckSettings(urls=tuple(urls.said), **settings)  # type: ignore[arg-type]
    return KeyCheck(made, upstream=urls, clock=clock or Clock(), own_key=own_key)  # type: ignore[arg-type]


async def status_of(check: KeyCheck, authorization: str) -> int:
    try:
        await check.check(authorization)
    except Refusal as refused:
        return refused.status
    return 200


@pytest.mark.parametrize(
    ("said", "authorization", "status"),
    [
        ([KNOWS], GOOD, 200),
        ([KNOWS], "bearer  good ", 200),
        ([KNOWS], BAD, 401),
        ([KNOWS], "", 401),
        ([KNOWS], "Bearer", 401),
        ([KNOWS], "Basic good", 401),
        ([KNOWS], "Bearer \udcff", 401),
        ([DOWN], "Bearer a\x01b", 401),
        ([{GOOD: 204}], GOOD, 200),
        ([{GOOD: 302}], GOOD, 401),
        ([{BAD: 401}, KNOWS], GOOD, 200),
        ([DOWN, KNOWS], GOOD, 200),
        ([DOWN, KNOWS], BAD, 401),
        ([DOWN], GOOD, 503),
        ([DOWN, {GOOD: 500}], GOOD, 503),
        ([{GOOD: 429}], GOOD, 503),
    ],
)
async def test_one_yes_is_enough_and_no_answer_is_no_refusal(said, authorization, status):
    urls = Urls({f"http://auth{at}": says for at, says in enumerate(said)})
    assert await status_of(check_of(urls), authorization) == status


async def test_a_url_that_hangs_ends_in_a_503_not_in_a_wait():
    check = check_of(Urls({"http://auth": None}), timeout_s=0.01)
    with pytest.raises(Refusal, match="could be reached") as refused:
        await check.check(GOOD)
    assert (refused.value.status, refused.value.reason) == (503, "key-check-unavailable")


async def test_answers_are_remembered_for_a_while():
    urls, clock = Urls({"http://auth": dict(KNOWS)}), Clock()
    check = check_of(urls, clock, accepted_ttl_s=60.0, refused_ttl_s=10.0)
    for _ in range(3):
        assert (await status_of(check, GOOD), await status_of(check, BAD)) == (200, 401)
    assert len(urls.asked) == 2
    urls.said["http://auth"] = {BAD: 200}  # one key is revoked, another one made
    clock.now_s = 10.0
    assert (await status_of(check, GOOD), await status_of(check, BAD)) == (200, 200)
    clock.now_s = 60.0
    assert await status_of(check, GOOD) == 401


async def test_what_a_silent_url_might_know_is_not_remembered_as_refused():
    urls = Urls({"http://a": DOWN, "http://b": {}})
    check = check_of(urls)
    assert await status_of(check, GOOD) == 401
    urls.said["http://a"] = KNOWS
    assert await status_of(check, GOOD) == 200


async def test_requests_with_one_key_share_one_question():
    urls = Urls({"http://auth": KNOWS})
    check = check_of(urls)
    assert await asyncio.gather(*(status_of(check, GOOD) for _ in range(20))) == [200] * 20
    assert urls.asked == [("http://auth", GOOD)]


async def test_a_waiting_request_that_is_cancelled_takes_no_other_with_it():
    check = check_of(Urls({"http://auth": KNOWS}))
    first, second = (asyncio.create_task(status_of(check, GOOD)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == 200


async def test_the_routers_own_key_is_good_without_asking():
    urls = Urls({"http://auth": DOWN})
    assert await status_of(check_of(urls, own_key="mine"), "Bearer mine") == 200
    assert urls.asked == []


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.floats(0, 5)), max_size=30))
def test_memory_is_bounded_and_never_older_than_its_time(steps):
    memory, added_s, now_s = ShortMemory(ttl_s=3.0, most=2), dict[bytes, float](), 0.0
    for member, waited_s in steps:
        now_s += waited_s
        if memory.holds(member, now_s):
            assert now_s < added_s[member] + 3.0
        memory.add(member, now_s)
        added_s[member] = now_s
        assert memory.holds(member, now_s)
        assert len(memory) <= 2


@pytest.mark.parametrize(("status", "said"), [(200, True), (299, True), (301, False), (403, False), (408, None), (503, None)])
def test_a_status_is_a_yes_a_no_or_neither(status, said):
    assert verdict(status) is said


def test_only_a_bearer_header_holds_a_key():
    assert [bearer_key(text) for text in ("Bearer a", "BEARER a", "Bearera", "a", "Basic a")] == ["a", "a", "", "", ""]


def auth_server(received: Received) -> Reply:
    return Reply(status=200 if received.headers.get("authorization") == GOOD else 403)


@pytest.mark.parametrize(("own_key", "at_servers"), [(None, GOOD), ("k", "Bearer k")])
async def test_clients_are_checked_and_servers_get_the_routers_key_where_it_has_one(own_key, at_servers):
    async with running(auth_server) as auth:
        async with cluster(keys=KeyCheckSettings(urls=(auth.url + "/me?x=1",)), api_key=own_key) as up:
            body = {"model": "m", "prompt": "hi"}
            for path in ("/v1/completions", "/v1/embeddings"):
                assert (await up.post(path, body))[0] == 401
                code, said = await up.post(path, body, authorization=BAD)
                assert (code, said["error"]["reason"]) == (401, "unauthorized")
                assert up.decode[0].received == []
            for path in ("/v1/completions", "/v1/embeddings"):
                assert (await up.post(path, body, authorization=GOOD))[0] == 200
            assert {leg.headers["authorization"] for leg in up.prefill[0].received + up.decode[0].received} == {at_servers}
            assert up.records()[0]["error"] == "unauthorized"
        assert [one.path for one in auth.received] == ["/me?x=1"] * 2


async def test_health_needs_no_key_and_the_worker_routes_need_the_routers_own_where_it_has_one():
    async with running(auth_server) as auth:
        keys = KeyCheckSettings(urls=(auth.url,))
        for own_key, client_status in (("k", 401), (None, 200)):
            async with cluster(keys=keys, api_key=own_key) as up:
                for path, header, status in (
                    ("/health", {}, 200),
                    ("/workers", {}, 401),
                    ("/workers", {"authorization": GOOD}, client_status),
                ):
                    async with up.session.get(up.url + path, headers=header) as response:
                        assert response.status == status


async def test_no_validation_url_is_a_503_that_says_so():
    keys, sent = KeyCheckSettings(urls=("http://127.0.0.1:1/",)), {"authorization": GOOD}
    async with cluster(keys=keys) as up, up.session.post(up.url + "/v1/completions", json={}, headers=sent) as response:
        assert (response.status, response.headers["retry-after"]) == (503, "1")
        assert (await response.json())["error"]["reason"] == "key-check-unavailable"
