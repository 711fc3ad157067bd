"""TBT over runs of steps equals TBT over every gap written out."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.sim.step_log import Gaps
from vllm_kairos.simulate import gaps as gaps_module
from vllm_kairos.simulate.gaps import gap_figures

OBJECTIVE_S = 0.07


@st.composite
def runs(draw):
    return Gaps(
        cause=draw(st.sampled_from(Cause)),
        decodes=draw(st.integers(0, 9)),
        first_s=draw(st.floats(1e-3, 0.2)),
        slope_s=draw(st.floats(0, 1e-4)),
        steps=draw(st.integers(0, 40)),
    )


def every_gap(run):
    """Each gap by itself, with its cause."""
    return [(run.first_s + step * run.slope_s, run.cause) for step in range(run.steps) for _ in range(run.decodes)]


@given(st.lists(runs(), max_size=12))
def test_figures_are_those_of_the_gaps_written_out(some_runs):
    written_out = [gap for run in some_runs for gap in every_gap(run)]
    values_s = np.sort([gap_s for gap_s, _ in written_out])
    figures = gap_figures(some_runs, OBJECTIVE_S)
    assert figures.count == len(written_out)
    if not written_out:
        assert (figures.p50, figures.p95, figures.mean, figures.most) == (None, None, None, None)
        return
    for share, found in ((0.5, figures.p50), (0.95, figures.p95), (0.99, figures.p99)):
        exact = values_s[int(np.ceil(share * len(values_s) - 1e-9)) - 1]
        assert found == pytest.approx(exact, rel=2e-4)
    assert figures.mean == pytest.approx(values_s.mean())
    assert figures.most == pytest.approx(values_s[-1])
    late = [cause for gap_s, cause in written_out if gap_s > OBJECTIVE_S]
    assert figures.violations == len(late)
    assert figures.violations_by_cause == {cause.name.lower(): late.count(cause) for cause in Cause}


def test_long_runs_are_cut_into_batches_without_a_trace(monkeypatch):
    run = Gaps(cause=Cause.DECODE, decodes=3, first_s=0.01, slope_s=1e-5, steps=1001)
    whole = gap_figures([run, run], OBJECTIVE_S)
    monkeypatch.setattr(gaps_module, "_MOST_STEPS_AT_ONCE", 64)
    cut = gap_figures([run, run], OBJECTIVE_S)
    assert (cut.count, cut.violations) == (whole.count, whole.violations)
    for name in ("p50", "p95", "p99", "mean", "most"):
        assert getattr(cut, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_equal_gaps_give_that_very_gap():
    figures = gap_figures([Gaps(cause=Cause.DECODE, decodes=7, first_s=0.0123, slope_s=0.0, steps=1000)], OBJECTIVE_S)
    assert figures.p50 == figures.p99 == pytest.approx(0.0123, rel=1e-12)
    assert figures.violation_share == 0
