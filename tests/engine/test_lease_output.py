"""How leases are set, how routers hear of them over a real socket, and how they are counted for /metrics."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from prometheus_client import CollectorRegistry, generate_latest

from tests.engine.builder import make_request, schedule_params, step
from tests.engine.test_node_state import free_endpoint
from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.engine.counts_writer import CountsWriter
from vllm_kairos.engine.endpoint import _metrics_answer
from vllm_kairos.engine.lease_counts import LeaseCounts, counts_path, read_counts
from vllm_kairos.engine.lease_metrics import LeaseCollector
from vllm_kairos.engine.lease_settings import EngineLeaseSettings
from vllm_kairos.engine.settings import parse_settings
from vllm_kairos.errors import ConfigError
from vllm_kairos.wire.codec import STATE_TOPIC, StateDecoder
from vllm_kairos.wire.messages import NodeStateMessage
from vllm_kairos.wire.routers import router_topic

PROFILE = "a100-llama3-8b"
REPORTING = {"state_endpoint": "tcp://127.0.0.1:5557", "role": "decode"}
PATIENCE_S = 20.0


def leases(raw: Any, **more: Any) -> EngineLeaseSettings | None:
    return parse_settings({"kairos": {**REPORTING, "leases": raw, **more}}).leases


@pytest.mark.parametrize("raw", [None, False])
def test_leases_are_off_unless_asked_for(raw: Any) -> None:
    assert leases(raw) is None


def test_true_takes_the_defaults_and_the_profile_at_hand(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text("{}")
    assert leases(True, profile=str(file)) == EngineLeaseSettings(profile=str(file), terms=LeaseSettings())
    emulated = leases(True, emulation={"profile": "emulated"})
    assert emulated is not None
    assert emulated.profile == "emulated"


def test_every_lease_setting() -> None:
    raw = {
        "ttl_s": 1,
        "horizon_s": 3,
        "tbt_slo_s": 0.05,
        "beta": 0.8,
        "profile": PROFILE,
        "totals_file": "/x/t",
        "correct": False,
    }
    terms = LeaseSettings(ttl_s=1, horizon_s=3, tbt_slo_s=0.05, beta=0.8)
    assert leases(raw) == EngineLeaseSettings(profile=PROFILE, terms=terms, correct=False, totals_file="/x/t")


def test_a_governors_profile_and_objective_are_the_leases_too() -> None:
    found = leases(True, governor={"profile": PROFILE, "tbt_slo_s": 0.025})
    assert found is not None
    assert (found.profile, found.terms.tbt_slo_s) == (PROFILE, 0.025)
    by_tpot = leases(True, governor={"profile": PROFILE, "tpot_slo_s": 0.03})
    assert by_tpot is not None
    assert by_tpot.terms.tbt_slo_s == 0.03


@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("ttl_s", {"ttl_s": 0}),
        ("ttl_s", {"ttl_s": 0.1}),
        ("ttl_s", {"ttl_s": "1"}),
        ("horizon_s", {"horizon_s": -1}),
        ("tbt_slo_s", {"tbt_slo_s": 0}),
        ("beta", {"beta": 1.5}),
        ("profile", {"profile": 7}),
        ("correct", {"correct": 1}),
        ("profile", True),
        ("surprise", {"profile": PROFILE, "surprise": 1}),
    ],
)
def test_bad_lease_settings_are_refused_by_name(field: str, raw: Any) -> None:
    given = {"profile": PROFILE, **raw} if isinstance(raw, dict) else raw
    with pytest.raises(ConfigError, match=rf"additional_config\.kairos\.leases\.{field}\b"):
        leases(given)


@pytest.mark.parametrize("raw", ["yes", 1, []])
def test_what_is_no_object_is_refused(raw: Any) -> None:
    with pytest.raises(ConfigError, match=r"additional_config\.kairos\.leases must be an object, true or false"):
        leases(raw)


def test_leases_need_a_feed() -> None:
    with pytest.raises(ConfigError, match="leases needs state_endpoint"):
        parse_settings({"kairos": {"leases": {"profile": PROFILE}}})


def test_a_prefill_server_grants_none() -> None:
    assert leases({"profile": PROFILE}, role="prefill") is None
    with pytest.raises(ConfigError, match="surprise"):
        leases({"surprise": 1}, role="prefill")


def test_leases_need_chunked_prefill(build: Any) -> None:
    kairos = {"role": "decode", "state_endpoint": free_endpoint(), "leases": {"profile": PROFILE}}
    with pytest.raises(ConfigError, match="leases needs chunked prefill, which is off"):
        build(kairos=kairos, chunked_prefill=False, token_budget=16384)


class Router:
    """A router's end of the feed."""

    def __init__(self, endpoint: str, router_id: str = "") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.RCVTIMEO, round(PATIENCE_S * 1000))
        self._socket.subscribe(STATE_TOPIC)
        if router_id:
            self._socket.subscribe(router_topic(router_id))
        self._socket.connect(endpoint)
        self._decoder = StateDecoder(None)

    def read(self, holds: Callable[[NodeStateMessage], bool] = lambda message: True) -> NodeStateMessage:
        """The first message for which that is so."""
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            message = self._decoder.decode(self._socket.recv_multipart())
            if holds(message):
                return message
        raise AssertionError("no such message came")

    def close(self) -> None:
        self._socket.close(linger=0)
        self._context.term()


@pytest.fixture
def served(build: Any, tmp_path: Path) -> Iterator[tuple[Any, str]]:
    endpoint = free_endpoint()
    settings = {"profile": PROFILE, "totals_file": str(tmp_path / "counts"), "ttl_s": 5.0}
    kairos = {"node_id": "d0", "role": "decode", "state_endpoint": endpoint, "heartbeat_period_s": 0.02, "leases": settings}
    scheduler = build(kairos=kairos)
    yield scheduler, endpoint
    scheduler.shutdown()


def test_a_router_that_connects_to_an_idle_engine_is_granted_a_share(served: tuple[Any, str]) -> None:
    scheduler, endpoint = served
    router = Router(endpoint, "r1")
    message = router.read(lambda message: message.lease is not None)
    assert message.lease is not None
    assert message.lease.lease_id.startswith(message.boot_id[:8])
    assert set(message.lease.shares) == {"r1"}
    transfer = schedule_params(64)
    transfer["kairos"]["lease"] = {"id": message.lease.lease_id, "router": "r1"}
    scheduler.add_request(make_request("P", 100, max_tokens=2, transfer=transfer))
    assert step(scheduler) == {"P": 64}
    router.close()


def test_an_old_router_gets_no_share_and_may_deflect_as_before(served: tuple[Any, str]) -> None:
    scheduler, endpoint = served
    old = Router(endpoint)
    for _ in range(5):
        message = old.read()
        assert (message.lease, message.speaks_leases) == (None, True)
    scheduler.add_request(make_request("P", 100, max_tokens=2, transfer=schedule_params(64)))
    assert step(scheduler) == {"P": 64}
    old.close()


def test_two_routers_share_until_one_goes(served: tuple[Any, str]) -> None:
    _, endpoint = served
    first, second = Router(endpoint, "r1"), Router(endpoint, "r2")
    both = first.read(lambda message: message.lease is not None and set(message.lease.shares) == {"r1", "r2"})
    second.close()
    alone = first.read(lambda message: message.lease is not None and set(message.lease.shares) == {"r1"})
    assert both.lease is not None
    assert alone.lease is not None
    assert alone.lease.shares["r1"][0] >= 2 * both.lease.shares["r2"][0]
    first.close()


def test_counts_reach_the_api_server(served: tuple[Any, str], tmp_path: Path) -> None:
    scheduler, endpoint = served
    router = Router(endpoint, "r1")
    router.read(lambda message: message.lease is not None)
    transfer = schedule_params(64)
    transfer["kairos"]["lease"] = {"id": "none", "router": "r1"}
    scheduler.add_request(make_request("P", 100, transfer=transfer))
    end_s = time.monotonic() + PATIENCE_S
    while (counts := read_counts(tmp_path / "counts")) is None or not counts.refused["unknown"]:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert counts.granted > 0
    router.close()
    scheduler.shutdown()
    assert read_counts(tmp_path / "counts") is None


def test_metrics_are_by_rank_and_reason(tmp_path: Path) -> None:
    counts = LeaseCounts(granted=7, admitted=3, admitted_tokens=900)
    counts.refused["spent"] = 2
    writer = CountsWriter(counts, tmp_path / "t.1", period_s=0.01)
    end_s = time.monotonic() + PATIENCE_S
    while read_counts(tmp_path / "t.1") is None:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    registry = CollectorRegistry()
    registry.register(LeaseCollector([tmp_path / "t", tmp_path / "t.1"]))
    text = generate_latest(registry).decode()
    for expected in (
        'kairos_leases_granted_total{engine="1"} 7.0',
        'kairos_lease_admissions_total{engine="1"} 3.0',
        'kairos_lease_prefill_tokens_total{engine="1"} 900.0',
        'kairos_lease_refusals_total{engine="1",reason="spent"} 2.0',
        'kairos_lease_refusals_total{engine="1",reason="not-yours"} 0.0',
        'kairos_leases_revoked_total{engine="1",reason="missed-deadline"} 0.0',
        'kairos_leases_revoked_total{engine="1",reason="no-capacity"} 0.0',
    ):
        assert expected in text
    assert 'engine="0"' not in text
    assert "kairos_leases_granted_total" in bytes(_metrics_answer([LeaseCollector([tmp_path / "t.1"])]).body).decode()
    writer.close()
    writer.close()
    assert read_counts(tmp_path / "t.1") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"granted": "x"}'])
def test_a_file_that_is_not_ours_counts_nothing(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    assert read_counts(path) is None


def test_counts_that_cannot_be_written_are_given_up(tmp_path: Path) -> None:
    writer = CountsWriter(LeaseCounts(), tmp_path / "none" / "t", period_s=0.01)
    writer._thread.join(PATIENCE_S)
    assert not writer._thread.is_alive()
    writer.close()


def test_both_processes_come_to_the_same_path() -> None:
    config = SimpleNamespace(instance_id="abc12")
    settings = EngineLeaseSettings(profile=PROFILE, terms=LeaseSettings())
    assert counts_path(config, settings, 0) == counts_path(config, settings, 0)
    assert counts_path(config, settings, 1).name.endswith("abc12.json.1")
