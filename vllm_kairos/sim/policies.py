"""Policies by name, those that only a simulation can run included."""

from dataclasses import dataclass

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.core.node import Role
from vllm_kairos.core.policies.registry import POLICIES_NEEDING_TRUTH, POLICY_SPECS, make_policy, spends_leases
from vllm_kairos.core.policy import Policy
from vllm_kairos.errors import ConfigError
from vllm_kairos.sim.aggregated import Aggregated, budget_of, is_aggregated
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.moves import DecodeMover
from vllm_kairos.sim.taichi.flow import FlowingDecodes
from vllm_kairos.sim.taichi.policy import Taichi
from vllm_kairos.sim.taichi.settings import parse_taichi
from vllm_kairos.sim.taichi.ttft import TtftEstimates

_SIMULATED_SPECS = ("aggregated[:BUDGET]", "taichi[:CHUNK]")


@dataclass(frozen=True, slots=True)
class BuiltPolicy:
    """A policy with what the simulator has to give it."""

    policy: Policy
    truth: bool = False  # it decides on the engines as they are
    mover: DecodeMover | None = None  # moves running decodes between engines
    leases: LeaseSettings | None = None  # it spends leases, which the engines then grant


def build_policy(spec: str, cluster: ClusterSpec) -> BuiltPolicy:
    """Build the policy that `spec` names for `cluster`. Raises ConfigError for an unknown one."""
    if is_aggregated(spec):
        budget_of(spec)
        _require_nodes_of_both_phases(cluster)
        return BuiltPolicy(Aggregated())
    if spec.partition(":")[0] == "taichi":
        return _taichi(spec, cluster)
    if spec.partition(":")[0] not in {known.partition(":")[0].partition("[")[0] for known in POLICY_SPECS}:
        raise ConfigError(f"policy must be one of {', '.join((*POLICY_SPECS, *_SIMULATED_SPECS))}, got {spec!r}")
    truth = spec in POLICIES_NEEDING_TRUTH
    models = _true_models(cluster) if truth else (cluster.prefill_model, cluster.decode_model)
    policy = make_policy(spec, prefill_model=models[0], decode_model=models[1], settings=cluster.settings)
    return BuiltPolicy(policy, truth, leases=_leases(cluster) if spends_leases(policy) else None)


def _leases(cluster: ClusterSpec) -> LeaseSettings:
    leases, heartbeat_s = cluster.leases or LeaseSettings(beta=cluster.settings.beta), cluster.router.heartbeat_period_s
    if leases.ttl_s <= heartbeat_s:
        raise ConfigError(f"leases: ttl_s must be > heartbeat_period_s, which is {heartbeat_s:g}, got {leases.ttl_s:g}")
    return leases


def _require_nodes_of_both_phases(cluster: ClusterSpec) -> None:
    if not any(engine.role is Role.BOTH for engine in cluster.engines):
        raise ConfigError(f"policy 'aggregated' needs nodes of both phases, as in 4B, got none of {len(cluster.engines)}")


def _taichi(spec: str, cluster: ClusterSpec) -> BuiltPolicy:
    settings = parse_taichi(spec)
    if cluster.prefill_model is None or cluster.decode_model is None:
        raise ConfigError(f"policy {spec!r} needs a latency profile, got none")
    chunk_tokens = settings.decode_heavy_chunk_tokens
    estimates = TtftEstimates(cluster.prefill_model, cluster.decode_model, cluster.settings, chunk_tokens)
    return BuiltPolicy(Taichi(estimates, cluster.settings, spec), mover=FlowingDecodes(settings))


def _true_models(cluster: ClusterSpec) -> tuple[StepLatencyModel | None, StepLatencyModel | None]:
    """What the first node of each phase really takes, noise aside."""
    prefills = [engine.true_model for engine in cluster.engines if engine.role.prefills]
    decodes = [engine.true_model for engine in cluster.engines if engine.role.decodes]
    return (prefills or decodes)[0], decodes[0]
