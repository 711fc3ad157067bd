"""Circuit breakers against a model that keeps every event and works the state out anew."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kairos_router.breaker import Breakers, BreakerState
from kairos_router.config import BreakerSettings, RetrySettings
from kairos_router.retry import backoff_s

SETTINGS = BreakerSettings(failure_threshold=3, success_threshold=2, open_s=10.0, window_s=20.0)
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN

events = st.lists(st.tuples(st.sampled_from(["ok", "fail", "ask", "tick"]), st.integers(0, 12)), max_size=60)


class Model:
    """The same rules on a list of (time, event), without any shortcut."""

    def __init__(self) -> None:
        self.state, self.failures, self.successes, self.opened_s = CLOSED, [], 0, 0.0

    def step(self, kind: str, now_s: float) -> None:
        if self.state is OPEN and now_s >= self.opened_s + SETTINGS.open_s:
            self.state, self.successes = HALF_OPEN, 0
        if kind == "ok" and self.state is HALF_OPEN:
            self.successes += 1
            if self.successes == SETTINGS.success_threshold:
                self.state, self.failures = CLOSED, []
        if kind == "fail" and self.state is not OPEN:
            self.failures.append(now_s)
            recent = [at_s for at_s in self.failures if at_s >= now_s - SETTINGS.window_s]
            if self.state is HALF_OPEN or len(recent) >= SETTINGS.failure_threshold:
                self.state, self.opened_s = OPEN, now_s


@settings(max_examples=200, deadline=None)
@given(events)
def test_a_breaker_moves_as_the_model_does(steps):
    breakers, model, now_s = Breakers(SETTINGS), Model(), 0.0
    for kind, wait_s in steps:
        now_s += wait_s
        model.step(kind, now_s)
        if kind == "ok":
            breakers.success("w", now_s)
        elif kind == "fail":
            breakers.failure("w", now_s)
        elif kind == "tick":
            breakers.expire(now_s)
        else:
            assert breakers.allow("w", now_s) == (model.state is not OPEN)
        breakers.expire(now_s)
        assert breakers.state("w") is model.state


@settings(max_examples=50, deadline=None)
@given(events)
def test_every_move_is_told_in_order(steps):
    told: list[tuple[BreakerState, BreakerState]] = []
    breakers, now_s = Breakers(SETTINGS, lambda name, old, new: told.append((old, new))), 0.0
    for kind, wait_s in steps:
        now_s += wait_s
        {"ok": breakers.success, "fail": breakers.failure}.get(kind, breakers.allow)("w", now_s)
    assert all(old != new for old, new in told)
    assert all(before[1] == after[0] for before, after in pairwise(told))
    assert set(told) <= {(CLOSED, OPEN), (OPEN, HALF_OPEN), (HALF_OPEN, OPEN), (HALF_OPEN, CLOSED)}


def test_a_worker_that_answers_errors_is_taken_out_and_brought_back():
    breakers = Breakers(SETTINGS)
    for at_s in (0, 1, 2):
        assert breakers.allow("w", at_s)
        breakers.failure("w", at_s)
    assert not breakers.allow("w", 2)
    assert breakers.allow("other", 2)
    assert breakers.allow("w", 12)  # a trial
    breakers.success("w", 12)
    breakers.success("w", 13)
    assert breakers.state("w") is CLOSED


def test_failures_that_are_far_apart_never_open_it():
    breakers = Breakers(SETTINGS)
    for at_s in range(0, 500, 15):
        breakers.failure("w", at_s)
    assert breakers.state("w") is CLOSED


def test_a_worker_that_began_anew_starts_without_its_past():
    seen = []
    breakers = Breakers(SETTINGS, lambda *move: seen.append(move))
    breakers.reset("w")
    for _ in range(3):
        breakers.failure("w", 0)
    breakers.reset("w")
    assert seen == [("w", CLOSED, OPEN), ("w", OPEN, CLOSED)]
    for _ in range(2):
        breakers.failure("w", 1)
    assert breakers.state("w") is CLOSED


def test_a_forgotten_worker_begins_anew():
    breakers = Breakers(SETTINGS)
    for _ in range(3):
        breakers.failure("w", 0)
    breakers.forget("w")
    assert breakers.state("w") is CLOSED


@given(st.integers(1, 5000), st.floats(0, 1, exclude_max=True))
def test_backoff_grows_to_its_bound_and_stays_there(attempt, uniform):
    retry = RetrySettings()
    wait_s = backoff_s(retry, attempt, uniform)
    assert 0 <= wait_s <= retry.max_backoff_s * (1 + retry.jitter_factor)
    assert backoff_s(retry, attempt + 1, 0.5) >= backoff_s(retry, attempt, 0.5)


def test_the_first_wait_is_the_configured_one():
    assert backoff_s(RetrySettings(jitter_factor=0.0), 1, 0.9) == 0.05
