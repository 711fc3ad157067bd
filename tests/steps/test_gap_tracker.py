"""Every token but a request's first ends exactly one gap, whatever joins, leaves, waits or is preempted."""

from dataclasses import dataclass, field
from math import isclose

from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.steps.attribution import TIMED_CAUSES, CauseClock, StepSpan, gap_cause
from vllm_kairos.steps.gap_tracker import Gap, GapTracker, Mark, gap_of

NAMES = "abcdef"


@dataclass(frozen=True)
class Step:
    """What happens: who gets a token in it, who is preempted before it and ends after it, and the time it takes."""

    run_s: float
    cause: Cause
    served: frozenset[str]
    preempted: frozenset[str]
    ended: frozenset[str]


some = st.frozensets(st.sampled_from(NAMES))
steps = st.builds(
    Step,
    run_s=st.floats(0.001, 1.0),
    cause=st.sampled_from(TIMED_CAUSES),
    served=some,
    preempted=st.frozensets(st.sampled_from(NAMES), max_size=1),
    ended=st.frozensets(st.sampled_from(NAMES), max_size=2),
)


@dataclass
class Model:
    """The same by hand: each request alone."""

    last: dict[str, Mark] = field(default_factory=dict)
    preempted: set[str] = field(default_factory=set)

    def expect(self, step: Step, now: Mark) -> list[tuple[Cause, float]]:
        gaps = []
        for name in step.served:
            if (mark := self.last.get(name)) is not None:
                cause = Cause.PREEMPTED if name in self.preempted else gap_cause(mark.clock, now.clock)
                gaps.append((cause, now.at_s - mark.at_s))
            self.last[name] = now
            self.preempted.discard(name)
        for name in step.ended:
            self.last.pop(name, None)
            self.preempted.discard(name)
        return sorted(gaps)


@given(st.lists(steps, max_size=25))
def test_each_gap_is_attributed_once(history: list[Step]) -> None:
    tracker, model, clock, at_s = GapTracker(), Model(), CauseClock(), 0.0
    for number, step in enumerate(history, 1):
        for name in step.preempted:
            tracker.preempt(name, number)
            model.preempted.add(name)
        at_s += step.run_s
        now = Mark(at_s, clock.advance(StepSpan(0.0, step.run_s, follows=True), step.cause))
        entered = sorted(step.served - tracker._members)
        waits = tracker.went_on(entered, len(step.served), number, now)
        if waits is None:
            waits = tracker.served(set(step.served), number, now)
        gaps = [gap_of(wait, now) for wait in waits]
        tracker.forget(step.ended)
        assert sorted((gap.cause, gap.gap_s) for gap in gaps for _ in range(gap.requests)) == model.expect(step, now)
    tracker.forget(NAMES)
    assert len(tracker) == 0


@given(st.lists(st.tuples(st.floats(0.001, 1.0), some), min_size=1, max_size=25))
def test_the_gaps_of_a_request_add_up_to_its_span(history: list[tuple[float, frozenset[str]]]) -> None:
    tracker, clock, at_s = GapTracker(), CauseClock(), 0.0
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    total_s = 0.0
    for number, (run_s, served) in enumerate(history, 1):
        at_s += run_s
        now = Mark(at_s, clock.advance(StepSpan(0.0, run_s, follows=True), Cause.DECODE))
        gaps = [gap_of(wait, now) for wait in tracker.served(set(served), number, now)]
        total_s += sum(gap.requests * gap.gap_s for gap in gaps)
        for name in served:
            first.setdefault(name, at_s)
            last[name] = at_s
    assert isclose(total_s, sum(last.values()) - sum(first.values()), abs_tol=1e-9)


def served(tracker: GapTracker, names: set[str], step: int, at_s: float) -> list[Gap]:
    """The gaps that end when `names` get tokens, on an engine that does nothing but decode."""
    now = Mark(at_s, (at_s, 0.0, 0.0, 0.0))
    return sorted(gap_of(wait, now) for wait in tracker.served(names, step, now))


def test_a_token_under_way_at_a_preemption_ends_an_ordinary_gap() -> None:
    tracker = GapTracker()
    served(tracker, {"a", "b"}, 1, 1.0)
    tracker.preempt("a", 3)  # step 3 was being scheduled while step 2 was in flight
    assert tracker.went_on([], 1, 2, Mark(2.0)) is None
    assert served(tracker, {"a", "b"}, 2, 2.0) == [Gap(Cause.DECODE, 1, 1.0)] * 2
    assert served(tracker, {"b"}, 3, 3.0) == [Gap(Cause.DECODE, 1, 1.0)]
    assert Gap(Cause.PREEMPTED, 1, 5.0) in served(tracker, {"a", "b"}, 4, 7.0)


def test_a_request_resumed_in_the_step_that_preempted_it_has_still_been_preempted() -> None:
    tracker = GapTracker()
    served(tracker, {"a"}, 1, 1.0)
    tracker.preempt("a", 3)
    assert served(tracker, {"a"}, 2, 2.0) == [Gap(Cause.DECODE, 1, 1.0)]
    assert served(tracker, {"a"}, 3, 4.0) == [Gap(Cause.PREEMPTED, 1, 2.0)]


def test_a_request_that_waits_for_its_client_has_no_gap() -> None:
    tracker = GapTracker(left_by_client=lambda request_id: request_id == "a")
    served(tracker, {"a", "b"}, 1, 1.0)
    served(tracker, set(), 2, 2.0)
    assert served(tracker, {"a", "b"}, 3, 3.0) == [Gap(Cause.DECODE, 1, 2.0)]
