"""What a governed engine promises its decodes, under exact, wrong and noisy predictions."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.governor.engine import Engine
from tests.strategies import A100, models
from vllm_kairos.core.governor import MEASURED, Governor, GovernorSettings, Moment, Objective, Queue, with_chunk
from vllm_kairos.core.governor.chunk import NO_CHUNKS
from vllm_kairos.core.linear import LinearStepModel

ROUNDING_S = 1e-9
AHEAD = pytest.mark.parametrize("ahead", [0, 1])


def prompts(count: int = 50, tokens: int = 3000) -> list[list[int]]:
    return [[0, tokens] for _ in range(count)]


def engine(profile: LinearStepModel = A100, *, truth: LinearStepModel = A100, **options: object) -> Engine:
    chosen = {"objective": Objective(tbt_s=0.05), "beta": 1.0}
    chosen |= {name: options.pop(name) for name in list(options) if name in _SETTINGS}
    governor = Governor(profile, GovernorSettings(**chosen))  # type: ignore[arg-type]
    return Engine(governor=governor, truth=truth, **options)  # type: ignore[arg-type]


_SETTINGS = ("objective", "beta", "starvation_s", "floor_tokens", "patience_tokens", "correct")


@settings(max_examples=50, deadline=None)
@given(
    model=models(),
    decodes=st.integers(1, 60),
    kv_tokens=st.integers(0, 100_000),
    slack=st.floats(1.001, 4.0),
    lengths=st.lists(st.integers(1, 3000), max_size=12),
    ahead=st.integers(0, 1),
    tpot=st.booleans(),
    patient=st.booleans(),
)
def test_exact_predictions_miss_no_deadline_and_waste_none(
    model: LinearStepModel,
    decodes: int,
    kv_tokens: int,
    slack: float,
    lengths: list[int],
    ahead: int,
    tpot: bool,
    patient: bool,
) -> None:
    """A decode-only step is feasible, so every token is in time.

    One prompt token more would have been too late, unless prefill waits for a later step.
    """
    objective_s = max(slack * model.latency_s(decodes, kv_tokens, 0, 0), 1e-6)
    node = engine(
        model,
        truth=model,
        objective=Objective(tpot_s=objective_s) if tpot else Objective(tbt_s=objective_s),
        starvation_s=1e9,
        patience_tokens=8 if patient else 0,
        prompts=[[0, length] for length in lengths],
        decodes=decodes,
        decode_kv_tokens=kv_tokens,
        ahead=ahead,
    )
    node.step()
    for _ in range(20):
        queue = [list(prompt) for prompt in node.prompts]
        node.step()
        if not (patient and tpot):
            _nothing_larger_was_safe(node, model, queue)
    for count, at_s in enumerate(node.token_times):
        due_s = node.token_times[0] + count * objective_s if tpot else node.token_times[max(0, count - 1)] + objective_s
        assert at_s <= due_s + ROUNDING_S


def _nothing_larger_was_safe(node: Engine, model: LinearStepModel, queue: list[list[int]]) -> None:
    carried, taken = node.chunks[-1], node.chunks[-1].tokens
    if taken == min(node.budget_tokens, sum(left for _, left in queue)):
        return
    larger, more = NO_CHUNKS, taken + 1
    for done, left in queue:
        tokens = min(left, more)
        larger = with_chunk(larger, done, tokens) if tokens else larger
        more -= tokens
    assert model.packed_step_s(node.decodes, node.decode_kv_tokens + larger.done_tokens, larger) > node.limits[-1] - ROUNDING_S
    assert carried.tokens + 1 == larger.tokens


@AHEAD
@pytest.mark.parametrize("error", [0.05, 0.1, 0.3])
def test_without_a_margin_a_step_is_late_by_no_more_than_the_error_of_its_prediction(ahead: int, error: float) -> None:
    noise = random.Random(7)
    node = engine(correct=False, prompts=prompts(), ahead=ahead, error=lambda step: 1 + error * noise.uniform(-1, 1))
    node.run(200)
    assert max(node.gaps) <= 0.05 * (1 + error) + ROUNDING_S
    assert max(node.gaps) > 0.05


@AHEAD
def test_a_step_is_in_time_while_errors_stay_within_the_margin_and_its_delay_bounded_beyond(ahead: int) -> None:
    for error, late_s in ((1 / 0.9 - 1, 0.0), (0.3, 0.05 * (1.3 * 0.9 - 1))):
        noise = random.Random(7)
        wrong = engine(
            beta=0.9, correct=False, prompts=prompts(), ahead=ahead, error=lambda _, e=error, r=noise: 1 + e * r.random()
        )
        wrong.run(200)
        assert max(wrong.gaps) <= 0.05 + late_s + ROUNDING_S


@AHEAD
def test_a_measured_margin_follows_the_errors(ahead: int) -> None:
    """With 10 % of noise few steps are late, with none the whole time is used."""
    noise = random.Random(3)
    node = engine(beta=MEASURED, prompts=prompts(400), ahead=ahead, error=lambda step: noise.gauss(1.0, 0.05))
    node.run(600)
    late = sum(gap > 0.05 for gap in node.gaps[150:])
    assert late <= 0.06 * 450
    exact = engine(beta=MEASURED, prompts=prompts(400), ahead=ahead)
    exact.run(100)
    assert exact.gaps[-1] == pytest.approx(0.05, rel=0.005)


@AHEAD
@pytest.mark.parametrize("scale", [0.7, 1.4])
def test_a_wrong_profile_is_corrected_within_some_tens_of_steps(ahead: int, scale: float) -> None:
    node = engine(A100.scaled(scale), beta=0.9, prompts=prompts(400), ahead=ahead)
    node.run(40)
    assert node.gaps[-1] == pytest.approx(0.9 * 0.05, rel=0.01)
    late = [index for index, gap in enumerate(node.gaps) if gap > 0.05]
    assert all(index < 8 for index in late)
    assert node.governor.new_drift() == pytest.approx(1 / scale, rel=0.01)
    assert node.governor.new_drift() is None


def test_a_correction_is_bounded_and_ignores_single_stalls() -> None:
    node = engine(prompts=prompts(400), error=lambda step: 50.0 if step % 9 == 5 else 1.0)
    node.run(100)
    assert max(gap for gap in node.gaps if gap < 0.5) <= 0.05 + ROUNDING_S
    far = engine(A100.scaled(0.1), prompts=prompts(400))
    far.run(100)
    flight = far.governor.scheduled(far.now_s, 1, 1, NO_CHUNKS)
    assert flight.predicted_s == pytest.approx(2 * A100.scaled(0.1).latency_s(1, 1, 0, 0))


@pytest.mark.parametrize("beta", [1.0, 0.9, MEASURED])
def test_where_decodes_alone_are_late_prefill_gets_its_floor_in_every_step(beta: float | str) -> None:
    node = engine(beta=beta, objective=Objective(tbt_s=0.005), starvation_s=1e9, prompts=prompts())
    node.run(50)
    assert [chunks.tokens for chunks in node.chunks].count(16) == 49


NO_ROOM_S = 0.0005 + A100.latency_s(16, 16_000, 0, 0)
"""Decodes alone are in time; beside them not even the fixed cost of prefill fits."""


@AHEAD
@pytest.mark.parametrize("beta", [1.0, MEASURED])
def test_a_starving_prefill_gets_its_floor_in_time(ahead: int, beta: float | str) -> None:
    """At most `starvation_s` and the steps in flight pass between two chunks; no other step is late."""
    no_room = Objective(tbt_s=NO_ROOM_S)
    node = engine(beta=beta, objective=no_room, starvation_s=0.2, floor_tokens=64, prompts=prompts(), ahead=ahead)
    node.run(200)
    served = [index for index, chunks in enumerate(node.chunks) if chunks.tokens]
    assert {node.chunks[index].tokens for index in served} == {64}
    waits = [sum(node.gaps[earlier:later]) for earlier, later in pairwise(served)]
    assert len(waits) > 5
    assert max(waits) <= 0.2 + (2 + ahead) * max(node.gaps)
    assert sum(gap > NO_ROOM_S + ROUNDING_S for gap in node.gaps) <= len(served)


def test_a_prompt_that_comes_later_has_not_starved() -> None:
    node = engine(objective=Objective(tbt_s=NO_ROOM_S), starvation_s=0.2, prompts=[[0, 16]])
    node.run(60)
    assert not node.prompts
    node.prompts = prompts(1)
    at = node.steps
    node.run(5)
    assert not any(chunks.tokens for chunks in node.chunks[at:])


@pytest.mark.parametrize("served", [False, True])
def test_a_head_that_takes_anothers_place_has_waited_as_long_unless_that_one_was_served(served: bool) -> None:
    governor = Governor(A100, GovernorSettings(objective=Objective(tbt_s=NO_ROOM_S), starvation_s=1.0, floor_tokens=16))
    governor.deadlines.go_on({"d": Objective(tbt_s=NO_ROOM_S)}, 1, Moment(0.0))
    for index in range(12):
        bound = governor.bound(index / 10, 1, 100, f"p{index}")
        assert bound is not None
        assert bound.starving == (not served and index >= 10)
        if served:
            governor.head_served(index / 10)


def test_a_step_that_nothing_bounds_is_not_counted_as_bounded() -> None:
    """The one before it was bounded, and carried no prefill."""
    slo = Objective(tpot_s=0.02)
    governor = Governor(A100, GovernorSettings(objective=slo, ttft_slo_s=1.0, beta=1.0))
    governor.deadlines.go_on({"d": slo}, 1, Moment(0.0))
    whole = with_chunk(NO_CHUNKS, 0, 10)
    assert governor.bound(0.0, 1, 100, "p", Queue(1, whole, 0.0, 100)) is not None
    assert governor.bound(0.02, 1, 100, "p", Queue(1, with_chunk(NO_CHUNKS, 0, 50_000), -9.0, 50_000)) is None
    governor.finished(governor.scheduled(0.02, 1, 100, whole), 9.0, 8.98)
    assert (governor.counts.bounded_steps, governor.counts.late_steps) == (0, 0)


def test_a_step_is_bounded_only_where_somebody_decodes() -> None:
    governor = Governor(A100, GovernorSettings())
    assert governor.bound(1.0, 0, 0, "p") is None


def test_outputs_that_never_come_are_forgotten() -> None:
    governor = Governor(A100, GovernorSettings())
    flights = [governor.scheduled(float(index), 1, 100, NO_CHUNKS) for index in range(200)]
    assert len(governor._flights) == 64
    governor.finished(flights[-1], 300.0, 0.01)
    assert not governor._flights
