"""Figures from samples, against numbers worked out by hand."""

from dataclasses import replace

import pytest

from tests.replay.virtual_time import request
from vllm_kairos.replay.figures import Objectives, figures_of
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.table import summary_lines

OBJECTIVES = Objectives(ttft_s=1.0, tbt_s=0.1)


def _sample(index: int = 0, *, due_s: float = 0.0, arrivals_s: tuple[float, ...] = (0.5, 0.6, 0.8), tokens: int = 3) -> Sample:
    return Sample(
        request=request(index, output_tokens=3),
        sent_id=f"id-{index}",
        due_s=due_s,
        sent_s=due_s + 0.1,
        ended_s=(arrivals_s or (due_s,))[-1],
        arrivals_s=arrivals_s,
        output_tokens=tokens,
        prompt_tokens=26,
    )


def test_95_tpot_is_over_the_tokens_of_usage_and_tbt_between_arrivals():
    figures = figures_of([_sample(arrivals_s=(1.0, 1.5, 2.8), tokens=10)], OBJECTIVES)
    assert figures.tpot_s.p50 == pytest.approx(1.8 / 9)
    assert (figures.tbt_s.count, figures.tbt_s.mean, figures.tbt_violations) == (2, pytest.approx(0.9), 2)
    assert figures.tokens_per_arrival == pytest.approx(10 / 3)


def test_ttft_counts_from_when_a_request_was_due_and_from_when_it_was_sent():
    figures = figures_of([_sample()], OBJECTIVES)
    assert (figures.ttft_s.p50, figures.ttft_from_sent_s.p50) == (pytest.approx(0.5), pytest.approx(0.4))
    assert figures.send_lag_s.most == pytest.approx(0.1)


def test_goodput_counts_requests_that_meet_both_objectives():
    late = _sample(1, due_s=1.0, arrivals_s=(2.5, 2.6))
    slow = _sample(2, due_s=2.0, arrivals_s=(2.5, 3.5))
    failed = replace(_sample(3, due_s=2.0), error="timeout", detail="too long")
    lone = _sample(4, due_s=3.0, arrivals_s=(4.0,), tokens=1)
    figures = figures_of([_sample(arrivals_s=(0.5, 0.55, 0.6)), late, slow, failed, lone], OBJECTIVES)
    assert figures.goodput_rps == pytest.approx(2 / 4.0)
    assert (figures.slo_attainment, figures.ttft_attainment, figures.tbt_attainment) == pytest.approx((0.4, 0.6, 0.6))
    assert (figures.failed, figures.errors, figures.error_examples) == (1, {"timeout": 1}, {"timeout": "too long"})
    assert figures.requests_per_s == pytest.approx(4 / 4.0)


def test_a_request_with_objectives_of_its_own_is_judged_by_them():
    sample = _sample()
    strict = replace(sample, request=replace(sample.request, ttft_slo_s=0.4))
    loose = replace(sample, request=replace(sample.request, tbt_slo_s=0.3))
    assert figures_of([strict], OBJECTIVES).ttft_attainment == 0
    assert figures_of([sample], OBJECTIVES).tbt_attainment == 0
    assert (figures_of([loose], OBJECTIVES).tbt_attainment, figures_of([loose], OBJECTIVES).tbt_violations) == (1, 0)


def test_92_93_lengths_beside_the_trace():
    figures = figures_of([_sample(), _sample(1, tokens=2)], OBJECTIVES)
    assert figures.output_length_mismatches == 1
    assert (figures.prompt_tokens, figures.prompt_tokens_served, figures.prompt_tokens_over.p50) == (16, 52, 18)


def test_the_ramp_and_what_was_cut_are_left_out():
    cut = replace(_sample(2, due_s=9.0), error="interrupted")
    figures = figures_of([_sample(), _sample(1, due_s=5.0, arrivals_s=(6.0,)), cut], OBJECTIVES, ramp_s=4.0, not_sent=3)
    assert (figures.requests, figures.warm_up, figures.interrupted, figures.not_sent) == (1, 1, 1, 3)
    assert figures.ttft_s.p50 == pytest.approx(1.0)


def test_decisions_are_counted_by_route_and_reason():
    routes = [("decode-only", "slo"), ("decode-only", "slo"), ("prefill-decode", "remote")]
    samples = [
        replace(_sample(index), decision={"route": route, "reason": reason}) for index, (route, reason) in enumerate(routes)
    ]
    figures = figures_of([*samples, _sample(9)], OBJECTIVES)
    assert (figures.deflected, figures.deflected_reasons, figures.kept_reasons) == (2, {"slo": 2}, {"remote": 1})
    assert (figures.requests, figures.decisions_told) == (4, 3)


def test_a_summary_says_when_no_decision_was_told():
    lines = list(summary_lines(figures_of([_sample(1)], OBJECTIVES)))
    assert any("none told" in line for line in lines)
    assert not any(line.startswith("deflected") for line in lines)


def test_nothing_at_all_has_figures_too():
    figures = figures_of([], OBJECTIVES)
    assert (figures.requests, figures.ttft_s.p50, figures.goodput_rps, figures.offered_rps) == (0, None, 0.0, None)
