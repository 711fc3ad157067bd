"""What transforms keep and what they change."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.workloads import session, workload_at, workloads
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import describe
from vllm_kairos.workload.transforms import (
    LEAST_SPAN_S,
    at_rate,
    capped_gaps,
    first,
    mean_rate_rps,
    scaled,
    sliced,
    spread,
    with_arrivals,
    with_prompt_limit,
    with_slo,
)

THREE_DAYS_S = 3 * 86400.0


def _arrivals(workload):
    return [request.arrival_s for request in workload.requests]


@pytest.mark.parametrize("origin_s", [0.0, 100.0])
def test_speed_scales_gaps_and_the_first_request_is_sent_at_once(origin_s):
    workload = workload_at([origin_s, origin_s + 2, origin_s + 3])
    assert _arrivals(scaled(workload, 2.0)) == [0.0, 1.0, 1.5]
    assert _arrivals(scaled(workload, 0.5)) == [0.0, 4.0, 6.0]


@given(workloads(), st.floats(0.01, 100))
def test_scaling_keeps_the_requests_in_order(workload, factor):
    faster = scaled(workload, factor)
    assert [r.request_id for r in faster.requests] == [r.request_id for r in workload.requests]
    assert faster.duration_s == pytest.approx(workload.duration_s / factor)


@given(workloads(), st.floats(0.1, 50))
def test_a_rate_is_reached_or_refused(workload, rate_rps):
    by_the_clock = [request.arrival_s for request in workload.requests if not request.after]
    if by_the_clock[-1] - by_the_clock[0] < LEAST_SPAN_S:
        with pytest.raises(WorkloadError, match="must span >= 1e-06 s"):
            at_rate(workload, rate_rps)
    else:
        assert mean_rate_rps(at_rate(workload, rate_rps)) == pytest.approx(rate_rps)


def test_think_times_scale_with_the_gaps():
    assert [request.think_s for request in scaled(session(think_s=4.0), 2.0).requests] == [0.0, 2.0, 2.0]


def test_a_slice_holds_its_span_and_starts_at_once():
    workload = workload_at([0.0, 10.0, 11.0, 20.0])
    assert _arrivals(sliced(workload, 5.0, 15.0)) == [0.0, 1.0]
    with pytest.raises(WorkloadError, match="must have at least one request"):
        sliced(workload, 100.0, 5.0)


@given(workloads(), st.integers(1, 30))
def test_the_first_requests_are_a_prefix(workload, n):
    assert first(workload, n).requests == workload.requests[:n]


def test_a_huge_gap_can_be_capped():
    assert _arrivals(capped_gaps(workload_at([0.0, 5.0, THREE_DAYS_S]), 60.0)) == [0.0, 5.0, 65.0]
    assert capped_gaps(session(think_s=THREE_DAYS_S), 60.0).requests[1].think_s == 60.0


@given(workloads(), st.floats(0, 100))
def test_capping_only_shortens(workload, most_s):
    capped = _arrivals(capped_gaps(workload, most_s))
    gaps = [later - earlier for earlier, later in pairwise(capped)]
    assert all(gap <= most_s + 1e-6 for gap in gaps)
    assert capped[-1] <= workload.duration_s + 1e-6


@given(workloads(), st.floats(0, 10), st.integers(0, 3))
def test_spreading_moves_each_request_by_less_than_a_slot(workload, slot_s, seed):
    moved = {request.request_id: request.arrival_s for request in spread(workload, slot_s, seed).requests}
    assert len(moved) == len(workload.requests)
    offsets = [moved[request.request_id] - request.arrival_s for request in workload.requests if not request.after]
    assert max(offsets) - min(offsets) <= slot_s + 1e-6
    assert spread(workload, slot_s, seed) == spread(workload, slot_s, seed)


def test_spreading_makes_clumps_poisson():
    clumps = workload_at([3.0 * (at // 10) for at in range(3000)])
    assert describe(clumps).scv > 5
    assert describe(spread(clumps, 3.0, 0)).scv == pytest.approx(1.0, abs=0.15)


@given(workloads(), st.integers(0, 3))
def test_drawn_arrivals_keep_the_requests(workload, seed):
    drawn = with_arrivals(workload, rate_rps=2.0, seed=seed)
    assert {r.request_id: r.prompt_tokens for r in drawn.requests} == {r.request_id: r.prompt_tokens for r in workload.requests}
    arrivals = {request.request_id: request.arrival_s for request in drawn.requests}
    assert all(arrivals[r.after] == r.arrival_s for r in drawn.requests if r.after)


def test_long_prompts_are_clipped_with_their_hashes_or_dropped():
    workload = workload_at([0.0, 1.0, 2.0], prompts=[100, 40, 90], block_tokens=16)
    clipped = with_prompt_limit(workload, 50, "clip")
    assert [(r.prompt_tokens, len(r.block_hashes)) for r in clipped.requests] == [(50, 4), (40, 3), (50, 4)]
    assert clipped.warnings == ("2 of 3 prompts are over 50 tokens: cut to that length",)
    dropped = with_prompt_limit(workload, 50, "drop")
    assert [(request.request_id, request.arrival_s) for request in dropped.requests] == [("r1", 0.0)]
    assert with_prompt_limit(workload, 100, "drop") is workload
    with pytest.raises(WorkloadError, match="how must be clip or drop, got 'cut'"):
        with_prompt_limit(workload, 50, "cut")


def test_a_dropped_turn_leaves_its_session_joined():
    one, three = with_prompt_limit(session(prompts=[10, 99, 10]), 50, "drop").requests
    assert (three.after, three.think_s) == (one.request_id, 4.0)
    two, three = with_prompt_limit(session(prompts=[99, 10, 10]), 50, "drop").requests
    assert (two.after, two.think_s, three.after) == ("", 0.0, two.request_id)


def test_objectives_are_set_and_left():
    workload = with_slo(with_slo(workload_at([0.0]), ttft_slo_s=4.0, tpot_slo_s=0.025), tbt_slo_s=0.07)
    (request,) = workload.requests
    assert (request.ttft_slo_s, request.tbt_slo_s, request.tpot_slo_s) == (4.0, 0.07, 0.025)
    with pytest.raises(WorkloadError, match="ttft_slo_s must be a finite number > 0, got 0"):
        with_slo(workload, ttft_slo_s=0.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_factors_and_rates_must_be_positive_and_finite(bad):
    for change in (scaled, at_rate):
        with pytest.raises(WorkloadError, match="must be a finite number > 0"):
            change(workload_at([0.0, 1.0]), bad)
