"""Results known on paper: M/D/1 and M/M/1 waits, and Little's law."""

import random
from itertools import accumulate
from math import sqrt
from statistics import fmean, stdev

import pytest

from tests.sim.clusters import FREE_NETWORK, IDEAL_ROUTER, cluster, prefill_cost, requests, run, simulation, steps_of
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.record import RequestRecord
from vllm_kairos.workload.request import Workload

STEP_S = 0.1
PROMPT = 64
REQUESTS = 6000
BATCHES = 20
T_95 = 2.093  # two-sided, 19 degrees of freedom


def one_at_a_time(model: LinearStepModel, budget: int = PROMPT) -> ClusterSpec:
    """A prefill node that runs one prompt after the other, and a decode node that answers at once."""
    return cluster(
        1,
        1,
        model=model,
        router=IDEAL_ROUTER,
        topology=FREE_NETWORK,
        token_budget_tokens=budget,
        max_running_requests=1,
        kv_blocks=10_000_000,
    )


def poisson(rate_rps: float, count: int, seed: int, prompts: list[int]) -> Workload:
    rng = random.Random(seed)
    times = accumulate(rng.expovariate(rate_rps) for _ in range(count))
    return requests(*((at_s, prompts[at % len(prompts)], 1) for at, at_s in enumerate(times)))


def queue_s(record: RequestRecord) -> float:
    return record.breakdown.prefill_queue_s


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and 95 % half-width by batch means, the first batch left out as warm-up."""
    size = len(values) // (BATCHES + 1)
    means = [fmean(values[size * at : size * (at + 1)]) for at in range(1, BATCHES + 1)]
    return fmean(means), T_95 * stdev(means) / sqrt(BATCHES)


@pytest.mark.parametrize("rho", [0.4, 0.7])
def test_m_d_1_waits(rho: float) -> None:
    load = poisson(rho / STEP_S, REQUESTS, 11, [PROMPT])
    outcome = run(one_at_a_time(steps_of(prefill_cost(fixed_s=STEP_S))), load)
    mean_s, half_s = interval([queue_s(record) for record in outcome.requests])
    expected_s = rho * STEP_S / (2 * (1 - rho))
    assert half_s < expected_s / 2
    assert abs(mean_s - expected_s) <= half_s


@pytest.mark.parametrize("rho", [0.5])
def test_m_m_1_waits(rho: float) -> None:
    """Exponential service through prompt lengths under a model that is linear in them."""
    rng = random.Random(5)
    prompts = [max(1, round(rng.expovariate(1 / 2000))) for _ in range(REQUESTS)]
    per_token_s = STEP_S / fmean(prompts)
    spec = one_at_a_time(steps_of(prefill_cost(per_token_s=per_token_s)), budget=max(prompts))
    outcome = run(spec, poisson(rho / STEP_S, REQUESTS, 12, prompts))
    mean_s, half_s = interval([queue_s(record) for record in outcome.requests])
    expected_s = rho * STEP_S / (1 - rho)
    assert half_s < expected_s / 2
    assert abs(mean_s - expected_s) <= half_s


@pytest.mark.parametrize("policy", ["never", "always", "kairos"])
def test_littles_law(policy: str) -> None:
    """The time average of requests in the system is their rate times their mean time in it."""
    rng = random.Random(3)
    times = accumulate(rng.expovariate(8.0) for _ in range(300))
    load = requests(*((at_s, rng.randint(50, 2000), rng.randint(1, 150)) for at_s in times))
    sim = simulation(cluster(1, 1, router=IDEAL_ROUTER), load, policy)
    area = last_s = 0.0
    inside = 0

    def observe() -> None:
        nonlocal area, last_s, inside
        area += inside * (sim.kernel.now_s - last_s)
        last_s, inside = sim.kernel.now_s, sim.router.open_requests

    sim.kernel.after_each = observe
    outcome = sim.run()
    assert all(record.ok for record in outcome.requests)
    spent_s = sum(record.finished_s - record.arrival_s for record in outcome.requests)
    assert area == pytest.approx(spent_s, rel=1e-9)
