"""Slices of real traces, at loads of a 2P2D cluster's prefill nodes, simulated under one policy each."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from vllm_kairos.core.estimates import prefill_completion_s
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape
from vllm_kairos.core.view import ClusterView
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.simulate.build import build_cluster, build_objectives
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import figures_of
from vllm_kairos.simulate.sections import ClusterConfig
from vllm_kairos.workload import transforms
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import Workload

PREFILL_NODES = 2
_NODES = "2P2D"
SEED = 0


@dataclass(frozen=True, slots=True)
class Slice:
    """The first requests of a trace file; `spread_s` undoes timestamps that were rounded down to slots."""

    file: str
    requests: int
    spread_s: float = 0.0


SLICES = {
    "azure-code": Slice("azure_2023/AzureLLMInferenceTrace_code.csv", 2000),
    "azure-conv": Slice("azure_2023/AzureLLMInferenceTrace_conv.csv", 4_000),
    "mooncake-conversation": Slice("mooncake/conversation_trace.jsonl.gz", 1200, spread_s=3.0),
    "servegen-m-large": Slice("servegen/sample_m-large_1h_6rps.csv.gz", 2000),
}

PolicyMaker = Callable[[ClusterSpec], Policy]
ViewMaker = Callable[[RouterSpec], ClusterView]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What decides: a policy by its spec, or `make`, with the settings and the router it decides under."""

    spec: str
    make: PolicyMaker | None = None
    settings: DecisionSettings = field(default_factory=DecisionSettings)
    router: RouterSpec = field(default_factory=RouterSpec)
    view: ViewMaker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation; `row` is its name in a table."""

    traces: Path
    trace: str
    profile: str
    load: float
    row: str
    arm: Arm


def run_cell(cell: Cell, tell: Callable[[int], None]) -> dict[str, Any]:
    """Simulate one cell; times in milliseconds, shares of 1."""
    config = _config(cell)
    cluster = build_cluster(config)
    rate_rps = rate_of(cell)
    workload = transforms.at_rate(slice_of(cell.traces, cell.trace), rate_rps)
    begun_s = time.process_time()
    outcome = _simulate(cell.arm, cluster, workload, config)
    cpu_s = time.process_time() - begun_s
    tell(len(workload.requests))
    figures = figures_of(outcome, build_objectives(config))
    return {
        "trace": cell.trace,
        "profile": cell.profile,
        "load": cell.load,
        "policy": cell.row,
        "rate_rps": round(rate_rps, 3),
        "ttft_p50_ms": _ms(figures.ttft_s.p50),
        "ttft_p95_ms": _ms(figures.ttft_s.p95),
        "tbt_p95_ms": _ms(figures.tbt_s.p95),
        "violations": round(figures.tbt_s.violation_share, 6),
        "attainment": round(figures.slo_attainment, 4),
        "deflected": figures.deflected,
        "requests": figures.requests,
        "rejected": figures.rejected,
        "preemptions": figures.preemptions,
        "busy": {name: round(node.busy_share, 2) for name, node in figures.nodes.items()},
        "outside_range": round(figures.out_of_range_share, 3),
        "cpu_s": round(cpu_s, 2),
    }


def _config(cell: Cell) -> SimulateConfig:
    arm = cell.arm
    cluster = ClusterConfig(nodes=_NODES, profile=cell.profile)
    return SimulateConfig(cluster=cluster, decision=arm.settings, router=arm.router)


def _simulate(arm: Arm, cluster: ClusterSpec, workload: Workload, config: SimulateConfig) -> Outcome:
    built = build_policy(arm.spec, cluster)
    policy = built.policy if arm.make is None else arm.make(cluster)
    simulation = Simulation(cluster, workload, policy, objectives=build_objectives(config), seed=SEED, truth=built.truth)
    if arm.view is not None:
        simulation.router._view = arm.view(arm.router)  # an ablation no product code offers
    return simulation.run()


@lru_cache(maxsize=len(SLICES))
def slice_of(traces: Path, name: str) -> Workload:
    """The slice's requests at the trace's own times."""
    wanted = SLICES[name]
    workload = load_trace(traces / wanted.file)
    if wanted.spread_s:
        workload = transforms.spread(workload, wanted.spread_s, SEED)
    return replace(transforms.first(workload, wanted.requests), name=name)


def rate_of(cell: Cell) -> float:
    """Requests per second that keep `PREFILL_NODES` prefill nodes busy `load` of the time, prefix hits aside."""
    return cell.load * PREFILL_NODES / mean_execution_s(cell.traces, cell.trace, cell.profile)


@lru_cache(maxsize=64)
def mean_execution_s(traces: Path, trace: str, profile: str) -> float:
    """Mean time that a prompt of the slice takes alone on an idle prefill node."""
    cluster = build_cluster(SimulateConfig(cluster=ClusterConfig(nodes=_NODES, profile=profile)))
    model, engine = cluster.prefill_model, cluster.engines[0]
    assert model is not None
    idle = NodeState(node_id=engine.name, role=Role.PREFILL, token_budget_tokens=engine.token_budget_tokens)
    return fmean(
        prefill_completion_s(model, idle, RequestShape(request_id="", prompt_tokens=request.prompt_tokens, max_output_tokens=1))
        for request in slice_of(traces, trace).requests
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)
