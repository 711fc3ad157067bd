"""Whole runs: determinism, what P/D adds and what it must not, preemption, gaps, sessions."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.clusters import FREE_NETWORK, cluster, requests, run, simulation, workload
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.sim.simulator import Outcome
from vllm_kairos.workload.formats.kairos import save_workload
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import TraceRequest, Workload


def some_load(seed: int = 4, count: int = 120) -> Workload:
    rng = random.Random(seed)
    return requests(*((rng.uniform(0, 12), rng.randint(1, 2000), rng.randint(1, 150)) for _ in range(count)))


def bytes_of(outcome: Outcome) -> bytes:
    return repr(replace(outcome, seed=0)).encode()


@pytest.mark.parametrize("policy", ["never", "always", "kairos"])
def test_one_seed_gives_the_same_bytes(policy: str) -> None:
    spec = cluster(1, 2, step_noise=0.1, router=RouterSpec(heartbeat_loss=0.3))
    first, second = (run(spec, some_load(), policy, seed=7) for _ in range(2))
    assert bytes_of(first) == bytes_of(second)
    assert bytes_of(first) != bytes_of(run(spec, some_load(), policy, seed=8))


def test_a_seed_matters_only_where_something_is_drawn() -> None:
    spec = cluster(1, 2)
    assert bytes_of(run(spec, some_load(), "kairos", seed=1)) == bytes_of(run(spec, some_load(), "kairos", seed=2))


def test_a_cluster_without_prefill_nodes_equals_one_that_deflects_everything() -> None:
    """Case 82: terms of the P/D path never touch a request that does not take it."""
    alone, beside = run(cluster(0, 1), some_load(), "always"), run(cluster(1, 1), some_load(), "always")
    assert all(record.deflected for record in (*alone.requests, *beside.requests))
    assert [(r.ttft_s, r.finished_s) for r in alone.requests] == [(r.ttft_s, r.finished_s) for r in beside.requests]
    assert alone.transfers == beside.transfers == 0
    assert all(record.breakdown.transfer_s == 0 for record in beside.requests)


def test_free_transfers_change_transfer_times_alone() -> None:
    load = requests((0.0, 1000, 20), (5.0, 1500, 20), (10.0, 100, 20))
    paid, free = run(cluster(1, 1), load), run(cluster(1, 1, topology=FREE_NETWORK, kv_bytes_per_token=0), load)
    for one, other in zip(paid.requests, free.requests, strict=True):
        assert one.breakdown.prefill_exec_s == pytest.approx(other.breakdown.prefill_exec_s)
        assert other.breakdown.transfer_s < one.breakdown.transfer_s
        saved_s = one.breakdown.transfer_s - other.breakdown.transfer_s
        assert one.ttft_s - other.ttft_s == pytest.approx(saved_s)
        assert one.tpot_s == pytest.approx(other.tpot_s)


def test_a_transfer_takes_its_bytes_through_the_nic() -> None:
    (record,) = run(cluster(1, 1), requests((0.0, 1001, 2))).requests
    assert record.breakdown.transfer_s == pytest.approx(0.0005 + 1000 * 131072 / 25e9, rel=1e-3)


def test_preemption_is_counted_once_in_the_clients_times() -> None:
    """Case 83."""
    spec = cluster(1, 1, kv_blocks=14, prefix_caching=False)
    outcome = run(spec, requests((0.0, 90, 60), (0.0, 90, 60)))
    first, second = outcome.requests
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert outcome.engines[1].preemptions == 1
    gaps = [gap for gap in outcome.engines[1].gaps if gap.cause.name == "PREEMPTED"]
    assert len(gaps) == 1
    assert gaps[0].decodes == 1
    felt_s = sum(g.decodes * (g.steps * g.first_s + g.slope_s * g.steps * (g.steps - 1) / 2) for g in outcome.engines[1].gaps)
    spent_s = sum(record.finished_s - record.arrival_s - record.ttft_s for record in outcome.requests)
    assert felt_s == pytest.approx(spent_s)  # neither request's redone work is counted twice
    assert second.ttft_s < first.finished_s < second.finished_s
    assert sum(g.decodes * g.steps for g in outcome.engines[1].gaps) == 2 * 59


def test_a_saved_workload_runs_as_the_one_it_was_saved_from(tmp_path: Path) -> None:
    """Case 84."""
    spec, load = cluster(1, 2), some_load()
    save_workload(load, tmp_path / "load.jsonl")
    again = load_trace(tmp_path / "load.jsonl")
    assert again.requests == load.requests
    assert run(spec, again, "kairos").requests == run(spec, load, "kairos").requests


def test_rows_of_one_instant_are_served_in_their_order() -> None:
    """Case 84: ties keep the order of the rows."""
    rows = [TraceRequest(request_id=name, arrival_s=1.0, prompt_tokens=500, output_tokens=3) for name in "abc"]
    spec = cluster(1, 1, token_budget_tokens=500, max_running_requests=4)
    for order in (rows, rows[::-1]):
        outcome = run(spec, workload(order))
        ttfts = [record.ttft_s for record in outcome.requests]
        assert [record.request.request_id for record in outcome.requests] == [row.request_id for row in order]
        assert ttfts == sorted(ttfts)


def test_a_gap_of_three_days_costs_only_heartbeats() -> None:
    """Case X2."""
    days = 3 * 86400.0
    spec = cluster(1, 1, router=RouterSpec(heartbeat_period_s=600.0, stale_after_s=1200.0))
    outcome = run(spec, requests((0.0, 1000, 100), (days, 1000, 100)))
    first, second = outcome.requests
    assert second.ttft_s == pytest.approx(first.ttft_s)
    assert outcome.duration_s == pytest.approx(days, rel=1e-3)
    assert outcome.events < 60 + 2 * 2 * days / 600


def test_a_session_waits_for_its_predecessor_and_thinks() -> None:
    rows = [
        TraceRequest(request_id="a", arrival_s=0.0, prompt_tokens=300, output_tokens=50),
        TraceRequest(request_id="b", arrival_s=0.0, prompt_tokens=300, output_tokens=50, after="a", think_s=2.0),
        TraceRequest(request_id="c", arrival_s=60.0, prompt_tokens=300, output_tokens=50, after="b", think_s=2.0),
    ]
    a, b, c = run(cluster(1, 1), workload(rows)).requests
    assert b.arrival_s == pytest.approx(a.finished_s + 2.0)
    assert c.arrival_s == 60.0


def test_the_followers_of_a_refused_request_still_come() -> None:
    rows = [
        TraceRequest(request_id="a", arrival_s=0.0, prompt_tokens=10_000, output_tokens=5),
        TraceRequest(request_id="b", arrival_s=0.0, prompt_tokens=30, output_tokens=5, after="a", think_s=1.0),
    ]
    a, b = run(cluster(1, 1, kv_blocks=20), workload(rows)).requests
    assert (a.ok, b.ok) == (False, True)


def test_progress_counts_every_request() -> None:
    seen: list[int] = []
    simulation(cluster(1, 1), some_load(count=9), progress=seen.append).run()
    assert seen == list(range(1, 10))
