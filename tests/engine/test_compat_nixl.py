"""The seams of NIXL: each test fails when a new release moves what compat_nixl.py relies on."""

import inspect
import os
from types import SimpleNamespace

import pytest
from vllm.platforms import current_platform

from vllm_kairos.engine import compat_nixl


def test_nixl_sees_only_the_cpus_this_process_has(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = current_platform.discover_numa_topology()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {everything[0][0]})
    with compat_nixl.own_cpus_only():
        assert current_platform.discover_numa_topology() == [[everything[0][0]]]
    assert current_platform.discover_numa_topology() == everything


def test_a_process_that_may_run_anywhere_keeps_what_vllm_finds() -> None:
    everything = current_platform.discover_numa_topology()
    allowed = os.sched_getaffinity(0)
    with compat_nixl.own_cpus_only():
        found = current_platform.discover_numa_topology()
    assert found == [[cpu for cpu in node if cpu in allowed] for node in everything]


def test_the_nixl_worker_takes_its_cpus_from_the_platform() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    source = inspect.getsource(base_worker)
    assert source.count("sched_setaffinity(") == 1
    assert "current_platform.discover_numa_topology()" in source
    assert base_worker.current_platform is current_platform


def test_nixl_progress_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The delay reaches every agent, through NIXL's own bindings, and applying it twice changes nothing."""
    agents: list[tuple[str, int]] = []
    bindings = SimpleNamespace(nixlAgent=lambda name, config: agents.append((name, config.pthrDelay)), other=7)
    api = SimpleNamespace(nixlBind=bindings)
    monkeypatch.setattr(compat_nixl.importlib, "import_module", lambda name: api)
    assert compat_nixl.delay_nixl_progress(500)
    assert compat_nixl.delay_nixl_progress(2000)
    api.nixlBind.nixlAgent("agent", SimpleNamespace(pthrDelay=0))
    assert agents == [("agent", 2000)]
    assert api.nixlBind.other == 7
    assert api.nixlBind._bindings is bindings


def test_nixl_wrapper_builds_agents_as_we_expect() -> None:
    pytest.importorskip("nixl")
    import nixl._api as api

    source = inspect.getsource(api.nixl_agent.__init__)
    assert "nixlBind.nixlAgent(" in source
    assert "pthrDelay" in source
