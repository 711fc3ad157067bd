"""Servers over time: start-up, wiring, restarts, other models, servers added and removed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import pytest

from kairos_router.breaker import Breakers, BreakerState
from kairos_router.config import BreakerSettings, FeedSettings, HealthSettings
from kairos_router.discovery import NodeFacts, ProbeError, reachable_endpoint
from kairos_router.fleet import Fleet
from kairos_router.health import HealthRecord
from kairos_router.metrics import RouterMetrics
from kairos_router.registry import Cause, Worker, WorkerRegistry
from vllm_kairos.core.node import Role
from vllm_kairos.core.view import ClusterView
from vllm_kairos.errors import ConfigError, RequestError

P, D, D2 = "http://p:1", "http://d:1", "http://d:2"
QUICK = HealthSettings(interval_s=0.01, startup_timeout_s=0.3, startup_check_interval_s=0.01, failure_threshold=2)
PREFILL = NodeFacts(
    node_id="p0",
    role=Role.PREFILL,
    models=frozenset({"m", "/models/m"}),
    block_size_tokens=16,
    state_endpoints=("tcp://*:5557",),
)
DECODE = replace(PREFILL, node_id="d0", role=Role.DECODE, state_endpoints=("tcp://127.0.0.1:5558",))


@dataclass
class Servers:
    """What each URL says; a string is the reason why it does not answer."""

    said: dict[str, NodeFacts | str]

    async def health(self, url: str, endpoint: str) -> None:
        await asyncio.sleep(0)
        answer = self.said.get(url, "Connection refused")
        if isinstance(answer, str):
            raise ProbeError(answer)

    async def facts(self, url: str) -> NodeFacts:
        answer = self.said[url]
        assert isinstance(answer, NodeFacts)
        return answer


@dataclass
class Followed:
    endpoints: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def follow(self, name: str, endpoints: tuple[str, ...]) -> None:
        self.endpoints[name] = endpoints

    async def leave(self, name: str) -> None:
        self.endpoints.pop(name, None)

    async def close(self) -> None:
        pass


@dataclass
class Rig:
    servers: Servers
    registry: WorkerRegistry
    followed: Followed
    breakers: Breakers
    fleet: Fleet
    forgotten: list[str]

    async def start(self) -> None:
        workers = [Worker(name=url[7:], role=Role.PREFILL if url == P else Role.DECODE, url=url) for url in self.servers.said]
        await self.fleet.start(tuple(workers))

    async def until(self, holds: Callable[[], Any]) -> None:
        async with asyncio.timeout(10):
            while not holds():  # noqa: ASYNC110 (conditions on several objects)
                await asyncio.sleep(0.005)

    def causes(self, name: str) -> frozenset[Cause]:
        return self.registry.causes(name)


@asynccontextmanager
async def rig(
    said: dict[str, NodeFacts | str], *, profile_model: str = "", health: HealthSettings = QUICK, **feed: Any
) -> AsyncIterator[Rig]:
    servers, followed, forgotten = Servers(dict(said)), Followed(), []
    registry, metrics, breakers = WorkerRegistry(ClusterView()), RouterMetrics(), Breakers(BreakerSettings())
    fleet = Fleet(
        registry=registry,
        prober=servers,  # type: ignore[arg-type]
        subscriber=followed,  # type: ignore[arg-type]
        breakers=breakers,
        metrics=metrics,
        health=health,
        feed=FeedSettings(**feed),
        now_s=monotonic,
        profiles={Role.DECODE: ("--profile", profile_model)} if profile_model else {},
        on_removed=lambda worker: forgotten.append(worker.name),
    )
    try:
        yield Rig(servers, registry, followed, breakers, fleet, forgotten)
    finally:
        await fleet.close()


async def test_servers_are_known_by_their_own_names_and_followed():
    async with rig({P: PREFILL, D: DECODE}) as it:
        await it.start()
        assert {worker.name for worker in it.registry.all()} == {"p0", "d0"}
        assert all(it.registry.accepting(name) for name in ("p0", "d0"))
        assert it.followed.endpoints == {"p0": ("tcp://p:5557",), "d0": ("tcp://d:5558",)}
        assert it.fleet.models == {"m", "/models/m"}


@pytest.mark.parametrize("name", ["a/b", "a\r\nset-cookie: x", "d" * 1000])
async def test_a_name_that_fits_no_header_is_not_taken(name):
    async with rig({P: PREFILL, D: replace(DECODE, node_id=name)}) as it:
        await it.start()
        assert {worker.name for worker in it.registry.all()} == {"p0", "d:1"}


async def test_a_plain_vllm_server_is_known_by_host_and_port():
    plain = NodeFacts(models=frozenset({"m"}))
    async with rig({P: plain, D: plain}, endpoints={"d:1": ("tcp://given:1",)}) as it:
        await it.start()
        assert it.followed.endpoints == {"p:1": (), "d:1": ("tcp://given:1",)}


@pytest.mark.parametrize("name", ["d0", D, "d:1"])
async def test_a_state_endpoint_may_name_a_server_in_three_ways(name):
    async with rig({P: PREFILL, D: DECODE}, endpoints={name: ("tcp://given:1",)}) as it:
        await it.start()
        assert it.followed.endpoints["d0"] == ("tcp://given:1",)


async def test_a_state_endpoint_of_an_unknown_server_is_refused_at_start_up():
    said = r"--state-endpoint must name a server by its name or URL \(d0, p0\), got 'd7'"
    async with rig({P: PREFILL, D: DECODE}, endpoints={"p0": ("tcp://a:1",), "d7": ("tcp://b:1",)}) as it:
        with pytest.raises(ConfigError, match=said):
            await it.start()


@pytest.mark.parametrize(("own_name", "warned"), [("d7", False), ("d8", True)])
async def test_a_state_endpoint_may_wait_for_a_server_that_is_late(monkeypatch, caplog, own_name, warned):
    monkeypatch.setattr("kairos_router.fleet._STRAGGLER_GRACE_S", 0.05)
    servers = {P: PREFILL, D: DECODE, D2: "Connection refused"}
    async with rig(servers, endpoints={"d7": ("tcp://given:1",)}) as it:
        await it.start()
        assert f"got 'd7'; it may be a server that is not up yet: {D2}" in caplog.text
        it.servers.said[D2] = replace(DECODE, node_id=own_name)
        await it.until(lambda: it.registry.find(own_name) and it.registry.accepting(own_name))
        assert (it.followed.endpoints[own_name] == ("tcp://given:1",)) is not warned
        assert caplog.text.count("so this endpoint is not used") == warned


WRONG = [
    ({P: replace(PREFILL, role=Role.DECODE), D: DECODE}, "--prefill http://p:1 must be a prefill server, got role 'decode'"),
    ({P: PREFILL, D: replace(DECODE, role=Role.PREFILL)}, "--decode http://d:1 must be a decode server, got role 'prefill'"),
    ({P: PREFILL, D: replace(DECODE, block_size_tokens=32)}, "must have block size"),
    ({P: PREFILL, D: replace(DECODE, models=frozenset({"other"}))}, "must serve model"),
    ({P: PREFILL, D: replace(DECODE, node_id="p0")}, "must have a node id of its own, got 'p0'"),
    ({P: PREFILL, D: "Connection refused"}, "--decode http://d:1 must become healthy within 0.3 s, got: Connection refused"),
]


@pytest.mark.parametrize(("said", "message"), WRONG)
async def test_servers_that_do_not_fit_are_refused_at_start_up(said, message):
    """Case 44 among others: the operator learns of it before the first request does."""
    async with rig(said) as it:
        with pytest.raises(ConfigError) as refused:
            await it.start()
        assert message in str(refused.value)


async def test_a_profile_of_another_model_is_refused():
    async with rig({P: PREFILL, D: DECODE}, profile_model="other/model") as it:
        with pytest.raises(ConfigError, match=r"--profile must be a profile of model .*, got a profile of 'other/model'"):
            await it.start()
    async with rig({P: PREFILL, D: DECODE}, profile_model="hub/M") as it:
        await it.start()  # a path and a hub name whose last parts agree


async def test_both_roles_up_is_enough_to_serve(monkeypatch):
    monkeypatch.setattr("kairos_router.fleet._STRAGGLER_GRACE_S", 0.05)
    patient = replace(QUICK, startup_timeout_s=60)
    async with rig({P: PREFILL, D: DECODE, D2: "Connection refused"}, health=patient) as it:
        await it.start()
        assert it.causes("d:2") == {Cause.STARTING}
        it.servers.said[D2] = replace(DECODE, node_id="d1")
        await it.until(lambda: it.registry.find("d1"))
        await it.until(lambda: it.registry.accepting("d1"))


async def test_a_late_server_of_another_block_size_takes_no_requests(monkeypatch):
    """Case 44 after start-up: kept out, while the others serve."""
    monkeypatch.setattr("kairos_router.fleet._STRAGGLER_GRACE_S", 0.05)
    async with rig({P: PREFILL, D: DECODE, D2: "Connection refused"}) as it:
        await it.start()
        it.servers.said[D2] = replace(DECODE, node_id="d1", block_size_tokens=32)
        await it.until(lambda: it.registry.find("d1") and it.causes("d1") == {Cause.WIRING})
        assert it.registry.accepting("d0")


async def test_a_node_that_returns_with_another_model_gets_no_requests_until_it_fits():
    """Case X8: told by the feed, not a minute later."""
    async with rig({P: PREFILL, D: DECODE}, health=replace(QUICK, interval_s=3600)) as it:
        await it.start()
        it.servers.said[D] = replace(DECODE, models=frozenset({"other"}))
        it.fleet.restarted("d0")
        await it.until(lambda: it.causes("d0") == {Cause.WIRING})
        it.servers.said[D] = DECODE
        it.fleet.restarted("d0")
        await it.until(lambda: it.registry.accepting("d0"))


async def test_a_restarted_engine_takes_requests_once_its_server_answers_and_not_before():
    """Its state reports begin earlier; and a breaker that its predecessor's end opened would keep it out for a minute."""
    async with rig({P: PREFILL, D: DECODE}, health=replace(QUICK, interval_s=3600)) as it:
        await it.start()
        for _ in range(BreakerSettings().failure_threshold):
            it.breakers.failure("d0", 0.0)
        it.servers.said[D] = "Connection refused"
        it.fleet.restarted("d0")
        assert Cause.STARTING in it.causes("d0")
        assert it.breakers.state("d0") is BreakerState.CLOSED
        for _ in range(5 * QUICK.failure_threshold):
            await asyncio.sleep(QUICK.startup_check_interval_s)
        assert Cause.STARTING in it.causes("d0")
        it.servers.said[D] = DECODE
        await it.until(lambda: it.registry.accepting("d0"))


async def test_a_node_that_returns_with_other_ranks_is_spread_over_them():
    async with rig({P: PREFILL, D: DECODE}) as it:
        await it.start()
        it.servers.said[D] = replace(DECODE, dp_size=2)
        await it.until(lambda: it.registry.get("d0").dp_size == 2)
        assert it.registry.resolve("d0/dp1")[1] == 1


async def test_failed_checks_take_a_server_out_and_passed_ones_bring_it_back():
    async with rig({P: PREFILL, D: DECODE}) as it:
        await it.start()
        it.servers.said[D] = "Connection refused"
        await it.until(lambda: Cause.UNHEALTHY in it.causes("d0"))
        it.servers.said[D] = DECODE
        await it.until(lambda: it.registry.accepting("d0"))


async def test_a_server_is_added_once_it_is_healthy_and_fits():
    """Case 73: with all its ranks."""
    async with rig({P: PREFILL, D: DECODE}) as it:
        await it.start()
        with pytest.raises(RequestError, match="url must be a healthy server"):
            await it.fleet.add(D2, Role.DECODE)
        it.servers.said[D2] = replace(DECODE, node_id="d1", dp_size=4)
        with pytest.raises(RequestError, match="must be a prefill server"):
            await it.fleet.add(D2, Role.PREFILL)
        with pytest.raises(RequestError, match="link-local"):
            await it.fleet.add("http://169.254.169.254", Role.DECODE)
        added = await it.fleet.add(D2, Role.DECODE)
        assert (added.name, added.dp_size) == ("d1", 4)
        assert it.registry.accepting("d1")
        with pytest.raises(RequestError, match="registered already"):
            await it.fleet.add(D2, Role.DECODE)


async def test_a_removed_server_is_forgotten_everywhere():
    async with rig({P: PREFILL, D: DECODE}) as it:
        await it.start()
        it.breakers.failure("d0", monotonic())
        removed = await it.fleet.remove("d0")
        assert removed.url == D
        assert it.registry.find("d0") is None
        assert "d0" not in it.followed.endpoints
        assert it.forgotten[-1] == "d0"
        with pytest.raises(RequestError, match="'d0'"):
            await it.fleet.remove("d0")
        assert (await it.fleet.add(D, Role.DECODE)).name == "d0"


@pytest.mark.parametrize(
    ("endpoint", "url", "address"),
    [
        ("tcp://*:5557", "http://gpu-1:8000", "tcp://gpu-1:5557"),
        ("tcp://0.0.0.0:5557", "http://10.0.0.5:8000", "tcp://10.0.0.5:5557"),
        ("tcp://127.0.0.1:5557", "http://10.0.0.5:8000", "tcp://10.0.0.5:5557"),
        ("tcp://10.1.1.1:5557", "http://10.0.0.5:8000", "tcp://10.1.1.1:5557"),
        ("tcp://*:5557", "http://[fd12::7]:8000", "tcp://[fd12::7]:5557"),
        ("ipc:///tmp/state", "http://127.0.0.1:8000", "ipc:///tmp/state"),
        ("ipc:///tmp/state", "http://gpu-1:8000", None),
        ("inproc://x", "http://gpu-1:8000", None),
        ("tcp://nonsense", "http://gpu-1:8000", None),
        ("tcp://*:99999", "http://gpu-1:8000", None),
    ],
)
def test_a_bind_address_becomes_one_to_connect_to(endpoint, url, address):
    assert reachable_endpoint(endpoint, url) == address


def test_health_needs_results_in_a_row():
    record = HealthRecord(HealthSettings(failure_threshold=3, success_threshold=2))
    assert record.record(True)  # the first pass of a starting server
    assert record.next_check_s == 60
    assert not record.record(False)
    assert record.next_check_s <= 30
    assert [record.record(ok) for ok in (True, False, False, False)] == [False, False, False, True]
    assert [record.record(ok) for ok in (True, False, True, True)] == [False, False, False, True]
