"""The connector: NIXL's own in everything, but it leaves deflected requests alone; and it can wrap another."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA, supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector

from tests.engine.builder import make_request, remote_params, schedule_params, step
from vllm_kairos.engine.connector import DeflectionAware, KairosNixlConnector, deflection_aware
from vllm_kairos.engine.ledger import TransferLedger
from vllm_kairos.errors import ConfigError

INNER = {"kairos_inner": "ExampleConnector", "shared_storage_path": "/tmp/kairos-test-kv"}


def test_factory_finds_it_by_name(build: Any) -> None:
    scheduler = build(connector="KairosNixlConnector")
    assert type(scheduler.connector) is KairosNixlConnector
    assert isinstance(scheduler.connector, NixlConnector)
    assert isinstance(scheduler.connector, SupportsHMA)
    assert supports_hma(KairosNixlConnector)


def test_everything_but_our_overrides_is_inherited() -> None:
    ours = {name for name in vars(DeflectionAware) if not name.startswith("__")}
    ours |= {name for name in vars(KairosNixlConnector) if not name.startswith("__")}
    class_level = {"get_required_kvcache_layout", "requires_piecewise_for_cudagraph", "build_prom_metrics"}
    class_level |= {"build_kv_connector_stats", "_inner_for_stats", "_abc_impl"}
    requests = {"on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "update_connector_output"}
    requests |= {"request_finished", "request_finished_all_groups", "kairos_ledger"}
    assert ours == class_level | requests
    assert all(hasattr(NixlConnector, name) for name in ours - {"kairos_ledger", "_inner_for_stats"})


def test_class_level_answers_are_nixls(build: Any) -> None:
    config = build(connector="KairosNixlConnector").vllm_config
    assert KairosNixlConnector.get_required_kvcache_layout(config) == NixlConnector.get_required_kvcache_layout(config)
    assert KairosNixlConnector.requires_piecewise_for_cudagraph({}) is NixlConnector.requires_piecewise_for_cudagraph({})
    assert type(KairosNixlConnector.build_kv_connector_stats()) is type(NixlConnector.build_kv_connector_stats())


def test_remote_request_is_pulled_as_ever(build: Any) -> None:
    scheduler = build(connector="KairosNixlConnector")
    request = make_request("R", 40, transfer=remote_params(40))
    scheduler.add_request(request)
    assert step(scheduler) == {}
    assert request.status.name == "WAITING_FOR_REMOTE_KVS"
    assert scheduler.connector.kairos_ledger.skipped_transfers == 0


def test_deflected_request_pulls_nothing_and_keeps_nothing(build: Any) -> None:
    scheduler = build(connector="KairosNixlConnector", blocks=20)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    scheduler.add_request(make_request("D", 40, transfer=schedule_params(16), max_tokens=1))
    assert [step(scheduler)["D"] for _ in range(3)] == [16, 16, 8]
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert not scheduler.requests
    ledger = scheduler.connector.kairos_ledger
    assert (ledger.skipped_transfers, ledger.skipped_tokens) == (1, 40)


def test_schedule_beside_remote_keys_means_deflected(build: Any) -> None:
    scheduler = build(connector="KairosNixlConnector")
    request = make_request("D", 40, transfer={**remote_params(40), **schedule_params(16)})
    scheduler.add_request(request)
    assert step(scheduler) == {"D": 16}
    assert set(request.kv_transfer_params) == {"kairos"}


def test_malformed_schedule_beside_remote_keys_is_pulled(build: Any) -> None:
    scheduler = build(connector="KairosNixlConnector")
    request = make_request("R", 40, transfer={**remote_params(40), "kairos": {"schema": 7}})
    scheduler.add_request(request)
    assert step(scheduler) == {}
    assert request.status.name == "WAITING_FOR_REMOTE_KVS"


def test_works_under_the_stock_scheduler(build: Any) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    scheduler = build(connector="KairosNixlConnector", scheduler_class=Scheduler)
    scheduler.add_request(make_request("D", 40, transfer=schedule_params(16)))
    assert step(scheduler) == {"D": 40}
    assert scheduler.connector.kairos_ledger.skipped_transfers == 1


def test_wraps_another_connector_by_name(build: Any) -> None:
    inner = KVConnectorFactory.get_connector_class_by_name("ExampleConnector")
    scheduler = build(connector="KairosNixlConnector", connector_extra=INNER)
    connector = scheduler.connector
    assert isinstance(connector, inner)
    assert isinstance(connector, DeflectionAware)
    assert not isinstance(connector, NixlConnector)
    assert type(connector) is deflection_aware(inner)
    assert isinstance(connector, SupportsHMA) == issubclass(inner, SupportsHMA)
    scheduler.add_request(make_request("D", 40, transfer=schedule_params(16)))
    assert step(scheduler) == {"D": 16}
    config = scheduler.vllm_config
    assert KairosNixlConnector.get_required_kvcache_layout(config) == inner.get_required_kvcache_layout(config)
    extra = config.kv_transfer_config.kv_connector_extra_config
    wanted = inner.requires_piecewise_for_cudagraph(extra)
    assert KairosNixlConnector.requires_piecewise_for_cudagraph(extra) == wanted


@pytest.mark.parametrize("name", ["NoSuchConnector", "KairosNixlConnector"])
def test_unknown_inner_connector_is_refused_by_name(build: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"kairos_inner: cannot use '{name}'"):
        build(connector="KairosNixlConnector", connector_extra={"kairos_inner": name})


def test_ledger_takes_measured_bytes_and_seconds_when_they_fit() -> None:
    ledger = TransferLedger()
    ledger.start("A", "p0", 100)
    ledger.start("B", "p1", 50)
    stats = SimpleNamespace(data={"bytes_transferred": [4096], "transfer_duration": [0.036]})
    ledger.finish(["A"], stats)
    ledger.finish(["B", "unknown"], SimpleNamespace(data={}))
    first, second = ledger.take_finished()
    assert first == ("p0", 100, 4096, 0.036)
    assert second[:3] == ("p1", 50, None)
    assert ledger.take_finished() == []


def test_ledger_forgets_requests_that_end_first() -> None:
    ledger = TransferLedger()
    ledger.start("A", "p0", 100)
    ledger.drop("A")
    ledger.drop("A")
    ledger.finish(["A"])
    assert ledger.take_finished() == []
