"""Deadlines kept step by step, against working each one out anew."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vllm_kairos.core.governor.deadlines import FORGIVEN_TOKENS, Deadlines, Moment, Objective

OBJECTIVES = (Objective(tbt_s=0.05), Objective(tbt_s=0.07), Objective(tpot_s=0.025), Objective(tbt_s=0.2, tpot_s=0.03))
BY_ID = {f"r{index}": OBJECTIVES[index % 4] for index in range(10)}


class Told:
    """Everything that was told, remembered as it is."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[Moment]] = {}

    def earliest_s(self) -> float:
        """By the formulas: last token + TBT, first token + n x TPOT."""
        due = [inf]
        for request_id, moments in self.tokens.items():
            tbt_s, tpot_s = BY_ID[request_id]
            due += [moments[-1].at_s + tbt_s] if tbt_s is not None else []
            due += [moments[0].at_s + len(moments) * tpot_s] if tpot_s is not None else []
        return min(due)


steps = st.lists(
    st.tuples(
        st.sets(st.sampled_from(sorted(BY_ID))),  # served
        st.sets(st.sampled_from(sorted(BY_ID)), max_size=2),  # ended after it
        st.floats(0.001, 0.06),  # predicted
        st.floats(0.5, 2.0),  # measured over predicted
    ),
    max_size=30,
)


@settings(max_examples=80)
@given(steps=steps)
def test_the_earliest_is_that_of_the_formulas(steps: list[tuple[set[str], set[str], float, float]]) -> None:
    deadlines, told, now_s = Deadlines(), Told(), 100.0
    for served, ended, predicted_s, ratio in steps:
        moment = Moment(now_s + predicted_s)
        joined = {request_id: BY_ID[request_id] for request_id in served - told.tokens.keys()}
        if not deadlines.go_on(joined, len(served), moment):
            deadlines.serve(served, moment, BY_ID.__getitem__, lambda request_id: True)
        for request_id in served:
            told.tokens.setdefault(request_id, []).append(moment)
        lost_s = now_s - 5.0  # far enough that nothing is forgiven here
        assert deadlines.earliest_s(lost_s) == pytest.approx(told.earliest_s(), abs=1e-9)
        now_s += ratio * predicted_s
        deadlines.settle(moment, now_s)
        for request_id in ended:
            deadlines.forget(request_id)
            told.tokens.pop(request_id, None)
        assert deadlines.earliest_s(lost_s) == pytest.approx(told.earliest_s(), abs=1e-9)
        assert len(deadlines) == len(told.tokens)
    for request_id in list(told.tokens):
        deadlines.forget(request_id)
    assert (len(deadlines), deadlines._tbt, deadlines._tempos) == (0, {}, {})


def served_once(objective: Objective, at_s: float = 1.0) -> Deadlines:
    deadlines, moment = Deadlines(), Moment(at_s)
    assert deadlines.go_on({"a": objective}, 1, moment)
    return deadlines


def test_time_saved_may_be_spent_under_tpot_alone() -> None:
    for objective, due_s in ((Objective(tbt_s=0.02), 1.042), (Objective(tpot_s=0.02), 1.06)):
        deadlines = served_once(objective)
        for at_s in (1.011, 1.022):
            assert deadlines.go_on({}, 1, Moment(at_s))
        assert deadlines.earliest_s(1.022) == pytest.approx(due_s)


def test_a_run_of_steps_counts_as_its_steps_one_by_one() -> None:
    at_once, one_by_one = Deadlines(), Deadlines()
    for deadlines in (at_once, one_by_one):
        assert deadlines.go_on(BY_ID, len(BY_ID), Moment(1.0))
    for step in range(1, 8):
        assert one_by_one.go_on({}, len(BY_ID), Moment(1.0 + 0.01 * step))
    assert at_once.go_on({}, len(BY_ID), Moment(1.07), steps=7)
    for request_id in sorted(BY_ID):
        assert at_once.earliest_s(1.07) == one_by_one.earliest_s(1.07)
        for deadlines in (at_once, one_by_one):
            deadlines.forget(request_id)


def test_a_lag_of_many_tokens_is_forgiven() -> None:
    deadlines = served_once(Objective(tpot_s=0.02))
    lag_s = FORGIVEN_TOKENS * 0.02
    assert deadlines.earliest_s(1.02 + 0.99 * lag_s) == pytest.approx(1.02)
    assert deadlines.earliest_s(1.02 + 1.01 * lag_s) == pytest.approx(1.02 + 1.01 * lag_s + 0.02)


@pytest.mark.parametrize("tpot_s", [1e6, 1e15, 1e308, inf])
def test_an_objective_beyond_all_time_is_none(tpot_s: float) -> None:
    deadlines = served_once(Objective(tpot_s=tpot_s))
    for step in range(5):
        deadlines.go_on({f"q{step}": Objective(tpot_s=tpot_s)}, step + 2, Moment(2.0 + step))
        assert deadlines.earliest_s(1e5 * step) > 9e5


def test_who_no_longer_decodes_is_forgotten() -> None:
    deadlines = served_once(Objective(tbt_s=0.02))
    deadlines.serve({"b"}, Moment(1.5), lambda request_id: Objective(tbt_s=0.07), lambda request_id: False)
    assert (len(deadlines), deadlines.earliest_s(1.5)) == (1, pytest.approx(1.57))


def test_without_decodes_there_is_no_deadline() -> None:
    assert Deadlines().earliest_s(5.0) == inf


def test_many_changes_leave_no_trail() -> None:
    deadlines = Deadlines()
    for index in range(2000):
        moment = Moment(index * 0.01)
        assert deadlines.go_on({f"q{index}": Objective(tpot_s=0.02)}, min(index, 3) + 1, moment)
        if index >= 3:
            deadlines.forget(f"q{index - 3}")
    (tempo,) = deadlines._tempos.values()
    assert len(tempo._heap) <= 64 + 2 * 4
