"""Every SimulationError names the thing, the field, the rule and the value."""

import re

import pytest

from tests.sim.clusters import cluster, engine
from vllm_kairos.core.node import Role
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.sim.kv_pool import KvPool

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, 0) for name in ("kv_blocks", "block_size_tokens", "floor_chunk_tokens", "max_running_requests")),
        *((name, -1) for name in ("kv_bytes_per_token", "max_wait_steps", "frontend_s", "step_noise")),
        *((name, value) for name in ("frontend_s", "step_noise") for value in (INF, NAN)),
        *(("step_factor", value) for value in (0.0, -1.0, 1e-300, 1e300, INF, NAN)),
        ("step_noise", 50.0),
        ("default_chunk_tokens", 0),
        ("token_budget_tokens", 255),
    ],
)
def test_an_engine_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(SimulationError, match=re.escape(f"node 'd0': {field} must be ") + f".*got {re.escape(str(value))}"):
        engine("d0", Role.DECODE, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("heartbeat_period_s", "stale_after_s") for value in (0.0, -1.0, INF, NAN)),
        ("heartbeat_period_s", 1e-09),
        *((name, -1.0) for name in ("heartbeat_delay_s", "decision_latency_s", "hop_s", "settle_s")),
        *(("heartbeat_loss", value) for value in (-0.1, 1.0, NAN)),
    ],
)
def test_a_router_that_cannot_be(field: str, value: float) -> None:
    with pytest.raises(SimulationError, match=f"router: {field} must be .*got {value}"):
        RouterSpec(**{field: value})


def test_a_cluster_needs_a_decode_node() -> None:
    with pytest.raises(SimulationError, match="decode nodes must be >= 1, got 0 of 2 nodes"):
        cluster(2, 0)


def test_node_names_must_differ() -> None:
    with pytest.raises(SimulationError, match="node names must differ, got 'd0' twice"):
        ClusterSpec(engines=(engine("d0", Role.DECODE), engine("d0", Role.DECODE)))


@pytest.mark.parametrize("at_s", [-1.0, NAN])
def test_nothing_happens_in_the_past(at_s: float) -> None:
    with pytest.raises(SimulationError, match="at_s must be >= now"):
        Kernel().at(at_s, lambda: None)


def test_events_of_one_instant_run_by_priority_and_then_in_order() -> None:
    kernel, seen = Kernel(), []
    for priority, name in ((2, "report"), (1, "step"), (0, "first"), (0, "second")):
        kernel.at(1.0, lambda name=name: seen.append(name), priority)  # type: ignore[misc]
    kernel.run()
    assert seen == ["first", "second", "step", "report"]
    assert kernel.handled == 4


def test_blocks_that_are_not_there_cannot_be_taken() -> None:
    pool = KvPool(4, 16)
    pool.take(3)
    with pytest.raises(SimulationError, match="blocks must be <= 1, those free, got 2"):
        pool.take(2)
