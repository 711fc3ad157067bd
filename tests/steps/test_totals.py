"""Counts of steps and gaps, and their way to another process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.regime import Regime
from vllm_kairos.errors import StateError
from vllm_kairos.steps.attribution import GAP_CAUSES
from vllm_kairos.steps.gap_tracker import Gap
from vllm_kairos.steps.totals import StepTotals, decode_totals, encode_totals

gaps = st.builds(Gap, st.sampled_from(GAP_CAUSES), st.integers(1, 300), st.floats(0.0, 100.0))


@given(st.lists(gaps, max_size=20))
def test_every_gap_is_counted_once(found: list[Gap]) -> None:
    totals = StepTotals()
    totals.add_gaps(found, 0.070)
    for cause in GAP_CAUSES:
        each = totals.causes[cause.label]
        mine = [gap for gap in found if gap.cause is cause]
        assert each.gaps == sum(each.buckets) == sum(gap.requests for gap in mine)
        assert each.violations == sum(gap.requests for gap in mine if gap.gap_s > 0.070)
    assert decode_totals(encode_totals(totals)) == totals


def test_steps_with_and_without_prediction() -> None:
    totals = StepTotals()
    totals.add_step(Regime.MIXED, 0.012, 0.010)
    totals.add_step(Regime.MIXED, 9.0, None)
    mixed = totals.regimes["mixed"]
    assert (mixed.steps, sum(mixed.buckets), mixed.actual_s, mixed.predicted_s) == (2, 1, 0.012, 0.010)
    assert mixed.ratio_sum == pytest.approx(1.2)


@pytest.mark.parametrize(
    ("shape", "regime"), [((3, 0), Regime.DECODE), ((0, 0), Regime.DECODE), ((3, 1), Regime.MIXED), ((0, 1), Regime.PREFILL)]
)
def test_regimes(shape: tuple[int, int], regime: Regime) -> None:
    assert Regime.of(*shape) is regime


@pytest.mark.parametrize(("data", "problem"), [(b"{", "step totals"), (b'{"schema": 9}', "schema must be 1, got 9")])
def test_what_is_no_totals_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(StateError, match=problem):
        decode_totals(data)


def test_causes_speak_the_simulators_language() -> None:
    assert [cause.label for cause in Cause] == ["decode", "deflected", "unplanned", "preempted", "migrated", "stall"]
