"""When steps begin and end, and how long they take."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.emulation.device import DeviceLine, StepCost
from vllm_kairos.emulation.sequences import StepLoad
from vllm_kairos.profiles import load_shipped

LOAD = StepLoad(8, 4000, PrefillTotals(1, 300, 100, 300 * 100 + 300 * 300 / 2))


def test_a_step_handed_over_early_begins_when_the_device_is_free() -> None:
    line = DeviceLine(0.01)
    assert line.run(1.0, 0.5, follows=False) == 1.5
    assert line.run(1.1, 0.25, follows=True) == 1.75


def test_host_work_between_two_steps_is_part_of_the_period() -> None:
    line = DeviceLine(0.01)
    line.run(1.0, 0.5, follows=False)
    assert line.run(1.504, 0.5, follows=True) == 2.0


def test_a_slow_host_delays_the_device() -> None:
    line = DeviceLine(0.01)
    line.run(1.0, 0.5, follows=False)
    assert line.run(1.6, 0.5, follows=True) == pytest.approx(2.09)


def test_a_step_after_idleness_begins_when_it_is_handed_over() -> None:
    line = DeviceLine(0.01)
    line.run(1.0, 0.5, follows=False)
    assert line.run(1.503, 0.5, follows=False) == 2.003


@given(st.lists(st.tuples(st.floats(0, 0.2), st.floats(0.001, 0.3), st.booleans()), min_size=1, max_size=30))
def test_steps_never_overlap_and_never_end_early(steps: list[tuple[float, float, bool]]) -> None:
    line, now_s, before_s = DeviceLine(0.01), 0.0, float("-inf")
    for gap_s, duration_s, follows in steps:
        now_s += gap_s
        end_s = line.run(now_s, duration_s, follows=follows)
        assert end_s >= before_s + duration_s - 1e-9
        assert end_s >= now_s + duration_s - 0.01 - 1e-9
        before_s = end_s


def test_without_bias_and_noise_a_step_takes_what_the_profile_predicts() -> None:
    model = load_shipped("a100-llama3-8b").step_model
    cost = StepCost(model, bias=1.0, noise=0.0, seed=0)
    assert cost.actual_s(cost.predicted_s(LOAD)) == model.packed_step_s(*LOAD)


def test_bias_and_seeded_noise() -> None:
    model = load_shipped("a100-llama3-8b").step_model

    def draws(seed: int) -> list[float]:
        cost = StepCost(model, bias=1.5, noise=0.1, seed=seed)
        return [cost.actual_s(1.0) for _ in range(400)]

    assert draws(1) == draws(1)
    assert draws(1) != draws(2)
    assert median(draws(1)) == pytest.approx(1.5, rel=0.05)
