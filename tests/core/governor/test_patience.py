"""Prefill waits for a chunk that is worth its step, but only where time is saved by that and never for long."""

import pytest

from tests.core.governor.engine import Engine
from vllm_kairos.core.governor import BoundedStep, Governor, GovernorSettings, Objective, Prompt, StepBound
from vllm_kairos.core.governor.price import StepPrice
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost

_DECODE = DecodeCost(fixed_s=0.004, per_decode_s=0.0, per_kv_token_s=0.0)
_TOKENS = PrefillCost(fixed_s=0.0, per_token_s=1e-5, per_done_token_s=0.0, per_attention_work_s=0.0)
_OVERHEAD = PrefillCost(fixed_s=0.004, per_token_s=1e-5, per_done_token_s=0.0, per_attention_work_s=0.0)
COSTLY = LinearStepModel(prefill=_TOKENS, decode=_DECODE, extra=_OVERHEAD)
"""A step takes 4 ms, as much again with prefill in it, and 10 us per prompt token: from 1600 on these are four fifths of it."""
TEN_MS = Objective(tpot_s=0.01)
PLAIN = LinearStepModel(prefill=_TOKENS, decode=_DECODE, extra=_TOKENS)


def engine(model: LinearStepModel = COSTLY, objective: Objective = TEN_MS, **settings: float) -> Engine:
    governor = Governor(model, GovernorSettings(objective=objective, beta=1.0, correct=False, **settings))
    return Engine(governor=governor, truth=model, prompts=[[0, 100_000]], budget_tokens=8192)


def largest(limit_s: float, prompt: Prompt, most_tokens: int = 8192, **settings: bool) -> int:
    bound = StepBound(StepPrice(COSTLY, 8, 8000, decodes_s=0.004), limit_s, patient=True)
    return BoundedStep(bound).largest(prompt, most_tokens, **settings)


def test_a_small_chunk_waits_until_its_step_is_worth_it() -> None:
    assert largest(0.010, Prompt(0, 5000)) == 0
    assert largest(0.0239, Prompt(0, 5000)) == 0
    assert largest(0.0241, Prompt(0, 5000)) == pytest.approx(1610, abs=1)


def test_what_no_time_would_make_larger_goes_at_once() -> None:
    assert largest(0.010, Prompt(0, 100)) == 100
    assert largest(0.010, Prompt(0, 5000), most_tokens=100) == 100
    assert largest(0.010, Prompt(0, 5000), may_wait=False) == pytest.approx(200, abs=1)


def test_nobody_passes_one_that_waits() -> None:
    step = BoundedStep(StepBound(StepPrice(COSTLY, 8, 8000, decodes_s=0.004), 0.010, patient=True))
    assert (step.largest(Prompt(0, 5000), 8192), step.full, step.largest(Prompt(0, 50), 8192)) == (0, True, 0)


def test_beside_a_chunk_the_rest_of_the_time_is_used() -> None:
    step = BoundedStep(StepBound(StepPrice(COSTLY, 8, 8000, decodes_s=0.004), 0.010, patient=True))
    step.grant("first", 0, step.largest(Prompt(0, 100), 8192))
    assert step.largest(Prompt(0, 5000), 8192) == pytest.approx(100, abs=1)


def test_more_is_prefilled_and_no_deadline_missed() -> None:
    patient, greedy = engine(), engine(patience_tokens=0)
    for each in (patient, greedy):
        while each.now_s < 12.0:
            each.step()
        first_s = each.token_times[0]
        assert all(at_s <= first_s + index * 0.01 + 1e-9 for index, at_s in enumerate(each.token_times))
    done = [sum(chunks.tokens for chunks in each.chunks) for each in (patient, greedy)]
    assert done[0] > 1.5 * done[1] > 0


@pytest.mark.parametrize(
    "other", [engine(PLAIN), engine(objective=Objective(tbt_s=0.01)), engine(objective=Objective(tbt_s=0.01, tpot_s=0.02))]
)
def test_where_waiting_saves_nothing_every_step_carries_what_it_can(other: Engine) -> None:
    other.run(40)
    assert all(chunks.tokens for chunks in other.chunks[1:])


def test_patience_ends() -> None:
    """Two tokens' time are five steps; a worthwhile chunk would take longer to save for."""
    node = engine(patience_tokens=2.0, objective=Objective(tpot_s=0.006))
    node.run(60)
    empty = "".join("x" if chunks.tokens else "." for chunks in node.chunks[1:]).split("x")
    assert 0 < max(map(len, empty)) <= 4
    assert 0 < max(chunks.tokens for chunks in node.chunks) < 1600
