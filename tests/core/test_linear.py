"""The linear model: never decreasing, its closed forms equal to adding steps up, its bound a bound."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import A100, CANDIDATES, batches, models
from vllm_kairos.core.chunking import build_schedule
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import DecodeCost, FittedLimits, PrefillCost, ShapeLimits
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError

ARGUMENTS = ("running_decodes", "kv_tokens", "prefill_tokens", "done_tokens")


@given(models(), batches(), st.sampled_from(ARGUMENTS), st.integers(1, 5000))
def test_a_larger_batch_is_never_predicted_faster(model, batch, argument, more):
    larger = replace(batch, **{argument: getattr(batch, argument) + more})
    assert model.step_s(larger) >= model.step_s(batch)


@given(models(), batches())
def test_a_mixed_step_costs_at_least_the_prompt_alone_and_the_decodes_alone(model, batch):
    step_s = model.step_s(batch)
    assert step_s >= model.step_s(replace(batch, running_decodes=0))
    assert step_s >= model.step_s(replace(batch, prefill_tokens=0))


@given(models(), batches(), st.integers(0, 60))
def test_the_lines_of_a_run_say_what_each_of_its_steps_takes(model, first, step):
    lines = model.run_lines(first)
    grown = replace(
        first,
        done_tokens=first.done_tokens + step * first.prefill_tokens,
        kv_tokens=first.kv_tokens + step * (first.prefill_tokens + first.running_decodes),
    )
    assume(first.prefill_tokens or first.running_decodes)
    assert max(line.first_s + step * line.slope_s for line in lines) == pytest.approx(model.step_s(grown), rel=1e-9)
    assert max(line.first_s for line in lines) == model.step_s(first)


@given(models(), st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 30_000)), min_size=1, max_size=8))
def test_a_sequence_of_prefill_steps_adds_up(model, chunks):
    totals = PrefillTotals(
        steps=len(chunks),
        tokens=sum(n for n, _ in chunks),
        done_tokens=sum(p for _, p in chunks),
        attention_work=sum(n * p + n * n / 2 for n, p in chunks),
    )
    assert model.prefill_total_s(totals) == pytest.approx(sum(model.latency_s(0, p, n, p) for n, p in chunks))


@given(
    models(),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200_000)), min_size=1, max_size=5),
    st.integers(1, 40_000),
    st.floats(0, 0.99),
    st.floats(0.005, 0.3),
    st.sampled_from([CANDIDATES, (512,), (8192, 64), (300, 200, 150)]),
)
def test_no_bound_exceeds_the_schedule_nor_calls_a_feasible_node_infeasible(model, loads, prompt, cached, limit_s, candidates):
    plan = {
        "prompt_tokens": prompt,
        "done_tokens": int(prompt * cached),
        "candidates": candidates,
        "limit_s": limit_s,
    }
    bound = model.schedule_bound(**plan)
    for (decodes, kv_tokens), loose_s in zip(loads, bound.loose_s(loads), strict=True):
        tight_s = bound.tight_s((decodes, kv_tokens))
        assert loose_s <= tight_s * (1 + 1e-9)
        planned = build_schedule(model, running_decodes=decodes, kv_tokens=kv_tokens, **plan)
        if planned is not None:
            assert tight_s <= planned.ttft_s


@pytest.mark.parametrize("prompt", [100, 4096, 20_000])
def test_the_bound_is_close_enough_to_save_most_schedules(prompt):
    plan = {"prompt_tokens": prompt, "done_tokens": 0, "candidates": CANDIDATES, "limit_s": 0.063}
    planned = build_schedule(A100, running_decodes=20, kv_tokens=40_000, **plan)
    assert planned is not None
    assert 0.9 * planned.ttft_s < A100.schedule_bound(**plan).tight_s((20, 40_000)) <= planned.ttft_s


def test_nothing_to_do_takes_no_time():
    assert A100.step_s(BatchShape(running_decodes=0, kv_tokens=0)) == 0.0


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), "fast"])
def test_a_coefficient_that_would_not_be_monotone_is_refused(value):
    with pytest.raises(ProfileError, match=r"DecodeCost.per_kv_token_s must be a finite number >= 0"):
        DecodeCost(fixed_s=1.0, per_decode_s=0.0, per_kv_token_s=value)
    with pytest.raises(ProfileError, match=r"PrefillCost.fixed_s must be a finite number >= 0"):
        PrefillCost(fixed_s=value, per_token_s=0.0, per_done_token_s=0.0, per_attention_work_s=0.0)


def test_each_regime_has_its_own_fitted_range():
    def limits(n: int, b: int) -> ShapeLimits:
        return ShapeLimits(running_decodes=b, kv_tokens=1000, prefill_tokens=n, done_tokens=1000)

    model = replace(A100, limits=FittedLimits(prefill=limits(512, 0), decode=limits(0, 64), mixed=limits(128, 8)))
    assert model.in_fitted_range(BatchShape(running_decodes=0, kv_tokens=0, prefill_tokens=512))
    assert not model.in_fitted_range(BatchShape(running_decodes=0, kv_tokens=0, prefill_tokens=513))
    assert model.in_fitted_range(BatchShape(running_decodes=64, kv_tokens=1000))
    assert not model.in_fitted_range(BatchShape(running_decodes=64, kv_tokens=1001))
    assert not model.in_fitted_range(BatchShape(running_decodes=9, kv_tokens=10, prefill_tokens=8))
    assert not model.in_fitted_range(BatchShape(running_decodes=8, kv_tokens=10, prefill_tokens=8, done_tokens=1001))
    assert A100.in_fitted_range(BatchShape(running_decodes=10**6, kv_tokens=10**9))


@given(models(), batches())
def test_a_packed_step_of_one_prompt_is_that_step(model, batch):
    tokens, done = batch.prefill_tokens, batch.done_tokens
    chunk = PrefillTotals(1, tokens, done, tokens * done + tokens * tokens * 0.5)
    assert model.packed_step_s(batch.running_decodes, batch.kv_tokens, chunk) == pytest.approx(model.step_s(batch))


@given(models(), batches(), st.integers(1, 4096))
def test_a_second_prompt_never_makes_a_step_faster(model, batch, more):
    tokens, done = batch.prefill_tokens, batch.done_tokens
    one = PrefillTotals(1, tokens, done, tokens * done + tokens * tokens * 0.5)
    two = PrefillTotals(1, tokens + more, done, one.attention_work + more * more * 0.5)
    loaded = batch.running_decodes, batch.kv_tokens
    assert model.packed_step_s(*loaded, two) >= model.packed_step_s(*loaded, one)


@given(models(), batches(), st.floats(0.5, 2))
def test_a_scaled_model_takes_that_many_times_as_long(model, batch, factor):
    assert model.scaled(factor).step_s(batch) == pytest.approx(factor * model.step_s(batch))
