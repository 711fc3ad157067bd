"""The paper's 2P2D cluster and workloads as every `paper-*` experiment sets them, free parameters included."""

from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import ConfigError
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.sections import ClusterConfig, NetworkConfig, SweepConfig, WorkloadConfig

PLAIN, OURS, PEER = "never", "kairos", "taichi"
_NAMES = {PLAIN: "plain P/D", OURS: "Kairos", PEER: "TaiChi"}

REQUESTS = 1200
"""Table 4: SL(2048) deflects 298 requests, and 24.8 % of Bursty's prompts are shorter than 2048 tokens."""
SEEDS = (0, 1, 2, 3, 4)
FIGURE_RATES_RPS = (6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0)
"""Figures 4 to 6."""

# The paper does not print these; docs/reproduction.md has what the figures become with others.
_NIC_GB_PER_S = 25.0  # the testbed's HDR InfiniBand, 200 Gbit/s for each GPU
_BURSTY_SCV = 4.0
_TOKEN_BUDGET = 2048  # vLLM's own default on an A100
_BETA = 0.99  # at 1.0 a decode that joined since the plan takes a step over the objective by a hair


def name_of(policy: str) -> str:
    """What the paper calls `policy`; its own name for one that is not in the paper."""
    return _NAMES.get(policy, policy)


def paper_config(
    policies: tuple[str, ...], *, workload: str = "Bursty", rates: tuple[float, ...] = (), requests: int = REQUESTS
) -> SimulateConfig:
    """One of the paper's workloads on its cluster, at Table 1's rate where no `rates` are given."""
    return SimulateConfig(
        cluster=ClusterConfig(
            nodes="2P2D",
            profile="a100-deepseek-v2-lite-paper",
            prefill_budget_tokens=_TOKEN_BUDGET,
            decode_budget_tokens=_TOKEN_BUDGET,
        ),
        network=NetworkConfig(nic_gb_per_s=_NIC_GB_PER_S),
        decision=DecisionSettings(alpha=1.3, beta=_BETA),
        workload=WorkloadConfig(generate=workload, requests=requests, scv=_BURSTY_SCV if workload == "Bursty" else None),
        sweep=SweepConfig(policies=policies, rates=rates, seeds=SEEDS),
    )


def figure_config() -> SimulateConfig:
    """The sweep behind Figures 4 to 6, with every baseline that the simulator has."""
    return paper_config((PLAIN, OURS, PEER) if _has(PEER) else (PLAIN, OURS), rates=FIGURE_RATES_RPS)


def _has(policy: str) -> bool:
    try:
        build_policy(policy, build_cluster(paper_config((PLAIN,))))
    except ConfigError:
        return False
    return True
