"""Policies by name, those that only a simulation can run included."""

from dataclasses import dataclass

from vllm_kairos.core.policies.registry import make_policy
from vllm_kairos.core.policy import Policy
from vllm_kairos.sim.aggregated import Aggregated
from vllm_kairos.sim.cluster_spec import ClusterSpec


@dataclass(frozen=True, slots=True)
class BuiltPolicy:
    """A policy with what the simulator has to give it."""

    policy: Policy
    truth: bool = False  # it decides on the engines as they are


def build_policy(spec: str, cluster: ClusterSpec) -> BuiltPolicy:
    """Build the policy that `spec` names for `cluster`. Raises ConfigError for an unknown one."""
    if spec == "aggregated":
        return BuiltPolicy(Aggregated())
    models = {"prefill_model": cluster.prefill_model, "decode_model": cluster.decode_model}
    return BuiltPolicy(make_policy(spec, **models, settings=cluster.settings))
