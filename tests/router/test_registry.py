"""Workers, their names, their causes, and what the view is told."""

import pytest

from kairos_router.registry import Cause, Worker, WorkerRegistry, checked_runtime_url, default_name
from vllm_kairos.core.node import Role
from vllm_kairos.core.view import ClusterView
from vllm_kairos.errors import ConfigError, RequestError

P = Worker(name="p0", role=Role.PREFILL, url="http://p:1")
D = Worker(name="d0", role=Role.DECODE, url="http://d:1", dp_size=4)


@pytest.fixture
def view() -> ClusterView:
    return ClusterView()


@pytest.fixture
def registry(view) -> WorkerRegistry:
    return WorkerRegistry(view)


def ids(view: ClusterView) -> dict[str, bool]:
    return {node.node_id: node.accepting for node in view.nodes(0.0)}


def test_each_data_parallel_rank_is_a_node_of_its_own(registry, view):
    """Case 73: a worker added at run time is spread over its ranks, not pinned to rank 0."""
    registry.add(P)
    registry.add(D)
    assert set(ids(view)) == {"p0", "d0/dp0", "d0/dp1", "d0/dp2", "d0/dp3"}
    assert registry.resolve("p0") == (P, None)
    assert [registry.resolve(node_id) for node_id in D.node_ids] == [(D, rank) for rank in range(4)]
    registry.remove("d0")
    assert set(ids(view)) == {"p0"}
    with pytest.raises(RequestError, match="'d0/dp1'"):
        registry.resolve("d0/dp1")


def test_a_node_that_never_reported_is_stale_not_idle(registry, view):
    """Case 69."""
    registry.add(P)
    assert [node.stale for node in view.nodes(0.0)] == [True]


def test_a_worker_takes_requests_when_no_cause_is_left(registry, view):
    registry.add(P, causes=frozenset({Cause.STARTING}))
    assert not ids(view)["p0"]
    registry.block("p0", Cause.BREAKER)
    registry.unblock("p0", Cause.STARTING)
    assert not ids(view)["p0"]
    registry.unblock("p0", Cause.BREAKER)
    assert ids(view)["p0"]
    assert registry.accepting("p0")
    registry.drain("p0")
    assert not ids(view)["p0"]
    assert registry.get("p0") == P  # still known: its handles stay usable


def test_names_and_urls_are_unique(registry):
    registry.add(P)
    with pytest.raises(ConfigError, match="'p0' twice"):
        registry.add(Worker(name="p0", role=Role.DECODE, url="http://x:1"))
    with pytest.raises(ConfigError, match="'http://p:1' twice"):
        registry.add(Worker(name="x", role=Role.DECODE, url="http://p:1"))
    with pytest.raises(RequestError, match="'x'"):
        registry.remove("x")


def test_a_worker_keeps_its_causes_under_a_new_name(registry, view):
    registry.add(Worker(name="d:1", role=Role.DECODE, url="http://d:1"), causes=frozenset({Cause.UNHEALTHY}))
    registry.replace("d:1", D)
    assert registry.causes("d0") == {Cause.UNHEALTHY}
    assert set(ids(view)) == set(D.node_ids)
    assert not any(ids(view).values())


def test_workers_are_found_by_url_or_host_and_port(registry):
    registry.add(P)
    assert registry.by_url("http://p:1/") == registry.by_url("p:1") == P
    assert registry.by_url("p:2") is None
    assert registry.by_url("http://p:1/admin") is None
    assert registry.find("p0") == P
    assert registry.find("p1") is None
    assert default_name("http://p:1") == "p:1"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://[fd00:ec2::254]:80",
        "http://[::ffff:169.254.169.254]",
        "http://0.0.0.0:8000",
        "http://224.0.0.1:80",
        "file:///etc/passwd",
        "http://h:1/path",
        "http://h:1?x=1",
        "http://user:secret@h:1",
        "http://h:99999",
        "http://",
        "h:1",
    ],
)
def test_urls_that_no_server_of_ours_has_are_refused(url):
    with pytest.raises(RequestError, match="url must"):
        checked_runtime_url(url)


def test_plain_urls_are_taken():
    assert checked_runtime_url("http://127.0.0.1:8000/") == "http://127.0.0.1:8000"
    assert checked_runtime_url("https://gpu-7.cluster.local") == "https://gpu-7.cluster.local:443"
    assert checked_runtime_url("http://[fd12::7]:9") == "http://[fd12::7]:9"
