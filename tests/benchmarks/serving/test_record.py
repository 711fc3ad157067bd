"""Figures of a cell, cut short or not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.record import cell_figures
from tests.benchmarks.serving.cells import OBJECTIVES, sample
from vllm_kairos.replay.open_loop import INTERRUPTED

WAITS = st.lists(st.floats(0.1, 30.0), min_size=1, max_size=12)


def _cut(due_s, at_s):
    """A request that had waited for so long, without a token, when the cell was cut."""
    return replace(sample(due_s, 1.0), arrivals_s=(), output_tokens=0, ended_s=due_s + at_s, error=INTERRUPTED)


def test_what_was_unanswered_attains_nothing_and_has_waited():
    figures = cell_figures([sample(0.0, 1.0), sample(1.0, 1.0), _cut(2.0, 50.0)], OBJECTIVES)
    assert (figures["requests"], figures["unanswered"], figures["failed"], figures["ttft_violations"]) == (3, 1, 0, 1)
    assert figures["slo_attainment"] == pytest.approx(2 / 3)
    assert figures["ttft_s"]["most"] == 50.0


def test_a_request_that_failed_is_not_unanswered():
    figures = cell_figures([sample(0.0, 1.0), replace(_cut(1.0, 2.0), error="timeout")], OBJECTIVES)
    assert (figures["unanswered"], figures["failed"]) == (0, 1)
    assert figures["ttft_s"]["most"] == 1.0


@settings(max_examples=50)
@given(WAITS, st.integers(0, 12))
def test_quantiles_of_a_cut_cell_are_lower_bounds(waits, answered):
    whole = [sample(float(at), wait) for at, wait in enumerate(waits)]
    cut = [
        one if at < answered else _cut(float(at), wait * 0.5) for at, (one, wait) in enumerate(zip(whole, waits, strict=True))
    ]
    lower, exact = (cell_figures(each, OBJECTIVES)["ttft_s"] for each in (cut, whole))
    assert all(lower[rank] <= exact[rank] for rank in ("p50", "p95", "p99"))
