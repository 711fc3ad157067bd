"""The simulated side: the cluster as calibrated, the same requests, the same policy objects."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.sim.calibration import HOP_S, Calibration
from benchmarks.sim.comparison import Figures, figures
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.core.node import Role
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.network import TwoTierTopology
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.record import Objectives
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.sim.step_log import Gaps
from vllm_kairos.wire.messages import NodeStateMessage
from vllm_kairos.workload.request import Workload

HEARTBEAT_S = 0.1
_HEARD_S = 1.0


def simulated_cluster(model: LinearStepModel, calibration: Calibration) -> ClusterSpec:
    """Engines take the calibrated times; the router predicts with the bare profile, as the real one does."""
    delays, link = calibration.delays, calibration.link
    return ClusterSpec(
        engines=tuple(_engine(size, model, calibration) for size in calibration.sizes.values()),
        prefill_model=model,
        decode_model=model,
        topology=TwoTierTopology(
            nic_bytes_per_s=link.bytes_per_s, flow_bytes_per_s=link.bytes_per_s, latency_s=link.latency_s + delays.pull_s
        ),
        router=RouterSpec(heartbeat_period_s=HEARTBEAT_S, decision_latency_s=delays.client_s, hop_s=HOP_S),
    )


def simulate(
    cluster: ClusterSpec, workload: Workload, policy: str, objectives: Objectives, seeds: Sequence[int]
) -> list[Figures]:
    """One run per seed."""
    return [simulate_once(cluster, workload, policy, objectives, seed) for seed in seeds]


def simulate_once(cluster: ClusterSpec, workload: Workload, policy: str, objectives: Objectives, seed: int) -> Figures:
    """One run; its seed draws the spread of the steps."""
    built = build_policy(policy, cluster)
    outcome = Simulation(cluster, _later(workload), built.policy, objectives=objectives, seed=seed, truth=built.truth).run()
    return _figures(outcome)


def _later(workload: Workload) -> Workload:
    """The same requests once the router has heard of every node, as the real one has by then."""
    moved = (replace(request, arrival_s=request.arrival_s + _HEARD_S) for request in workload.requests)
    return replace(workload, requests=tuple(moved))


def _engine(size: NodeStateMessage, model: LinearStepModel, calibration: Calibration) -> EngineSpec:
    role, factors = Role(size.role), calibration.factors[size.node_id]
    delays = calibration.delays
    return EngineSpec(
        name=size.node_id,
        role=role,
        model=factors.served(model),
        kv_blocks=size.total_kv_blocks,
        token_budget_tokens=size.token_budget_tokens,
        max_running_requests=size.max_running_requests,
        block_size_tokens=size.block_size_tokens,
        kv_bytes_per_token=size.kv_bytes_per_token,
        frontend_s=delays.prefill_frontend_s if role is Role.PREFILL else delays.decode_frontend_s,
        step_noise=factors.noise,
    )


def _figures(outcome: Outcome) -> Figures:
    gaps = [gap for engine in outcome.engines for one in engine.gaps for gap in _each(one)]
    return figures(
        [request.ttft_s for request in outcome.requests],
        gaps,
        deflected=sum(request.deflected for request in outcome.requests),
        duration_s=outcome.duration_s - _HEARD_S,
    )


def _each(run: Gaps) -> list[float]:
    return list(np.repeat(run.first_s + run.slope_s * np.arange(run.steps), run.decodes))
