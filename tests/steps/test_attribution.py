"""Every moment belongs to one cause, and a gap to the cause that took most of it."""

from itertools import pairwise
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.steps.attribution import TIMED_CAUSES, CauseClock, StepSpan, carried, gap_cause, step_cause

times = st.floats(0.0, 10.0)
spans = st.builds(StepSpan, idle_s=times, run_s=times, follows=st.booleans())
timed_causes = st.sampled_from(TIMED_CAUSES)


@pytest.mark.parametrize(
    ("deflected", "unplanned", "cause"),
    [(0, 0, Cause.DECODE), (5, 0, Cause.DEFLECTED), (0, 5, Cause.UNPLANNED), (5, 1, Cause.UNPLANNED)],
)
def test_what_a_step_carries(deflected: int, unplanned: int, cause: Cause) -> None:
    assert carried(deflected, unplanned) is cause


@pytest.mark.parametrize(
    ("actual_s", "predicted_s", "cause"),
    [(0.020, 0.010, Cause.DEFLECTED), (0.021, 0.010, Cause.STALL), (9.0, None, Cause.DEFLECTED), (0.001, 0.0, Cause.STALL)],
)
def test_a_step_far_longer_than_predicted_is_a_stall(actual_s: float, predicted_s: float | None, cause: Cause) -> None:
    assert step_cause(Cause.DEFLECTED, actual_s, predicted_s, 2.0) is cause


def test_idle_time_belongs_to_a_step_only_where_the_engine_had_work() -> None:
    assert StepSpan(0.5, 1.0, follows=True).actual_s == 1.5
    assert StepSpan(0.5, 1.0, follows=False).actual_s == 1.0


@given(st.lists(st.tuples(spans, timed_causes), min_size=1, max_size=20))
def test_the_clock_holds_all_time_by_cause(steps: list[tuple[StepSpan, Cause]]) -> None:
    clock = CauseClock()
    readings = [clock.advance(span, cause) for span, cause in steps]
    assert isclose(sum(readings[-1]), sum(span.idle_s + span.run_s for span, _ in steps), abs_tol=1e-9)
    for before, after in pairwise(readings):
        assert all(late >= early for early, late in zip(before, after, strict=True))


@given(st.lists(st.tuples(spans, timed_causes), min_size=1, max_size=8))
def test_a_gap_is_put_down_to_what_took_the_longest_part(steps: list[tuple[StepSpan, Cause]]) -> None:
    clock = CauseClock()
    parts = dict.fromkeys(TIMED_CAUSES, 0.0)
    for span, cause in steps:
        reading = clock.advance(span, cause)
        parts[Cause.STALL] += span.idle_s
        parts[cause] += span.run_s
    assert parts[gap_cause((0.0, 0.0, 0.0, 0.0), reading)] == max(parts.values())


def test_time_between_steps_is_a_stall_when_it_is_most_of_the_gap() -> None:
    clock = CauseClock()
    before = clock.advance(StepSpan(0.0, 0.010, follows=True), Cause.DECODE)
    mostly_run = clock.advance(StepSpan(0.009, 0.010, follows=True), Cause.DEFLECTED)
    assert gap_cause(before, mostly_run) is Cause.DEFLECTED
    mostly_idle = clock.advance(StepSpan(0.011, 0.010, follows=True), Cause.DEFLECTED)
    assert gap_cause(mostly_run, mostly_idle) is Cause.STALL


def test_two_tokens_at_once_are_no_stall() -> None:
    assert gap_cause((1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0)) is Cause.DECODE
