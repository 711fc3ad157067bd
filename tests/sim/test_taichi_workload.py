"""TaiChi on the paper's cluster and Bursty workload: within both objectives at low rates, beyond TBT at high ones."""

from functools import cache

from tests.sim.taichi_cluster import cluster
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.record import DEFAULT_OBJECTIVES
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.workload.generate import generate

POLICY = "taichi:256"  # its default


@cache
def run(rate_rps: float, policy: str = POLICY, kv_blocks: int = 80_000) -> Outcome:
    spec = cluster(kv_blocks=kv_blocks)
    built = build_policy(policy, spec)
    workload = generate("Bursty", requests=150, seed=0, rate_rps=rate_rps)
    return Simulation(spec, workload, built.policy, truth=built.truth, mover=built.mover).run()


def p95_ttft_s(outcome: Outcome) -> float:
    return sorted(record.ttft_s for record in outcome.requests)[int(0.95 * len(outcome.requests))]


def late_share(outcome: Outcome) -> float:
    """Share of all gaps beyond the TBT objective."""
    runs = [gaps for engine in outcome.engines for gaps in engine.gaps]
    late = sum(
        gaps.decodes * sum(gaps.first_s + step * gaps.slope_s > DEFAULT_OBJECTIVES.tbt_s for step in range(gaps.steps))
        for gaps in runs
    )
    return late / sum(gaps.decodes * gaps.steps for gaps in runs)


def test_at_a_low_rate_both_objectives_are_met_at_the_95th_percentile() -> None:
    outcome = run(4.0)
    assert p95_ttft_s(outcome) <= DEFAULT_OBJECTIVES.ttft_s
    assert late_share(outcome) < 0.05


def test_tbt_violations_rise_with_the_rate() -> None:
    shares = [late_share(run(rate_rps)) for rate_rps in (4.0, 12.0)]
    assert shares == sorted(shares)
    assert shares[0] < 0.05 < shares[-1]


def test_both_kinds_of_instances_compute_prompts() -> None:
    assert all(engine.prefill_tokens for engine in run(4.0).engines)


def test_decodes_flow_only_where_kv_runs_short() -> None:
    assert not any(record.migrations for record in run(4.0).requests)
    short = run(6.0, kv_blocks=3000)
    assert any(record.migrations for record in short.requests)
    assert all(record.ok for record in short.requests)
    assert sum(engine.decode_tokens for engine in short.engines if engine.name.startswith("p"))
