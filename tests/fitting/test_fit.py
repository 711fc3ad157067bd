"""Fitting recovers a known law, whatever is wrong with a few rows, and refuses what it cannot model."""

import random
from dataclasses import replace

import pytest

from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.features import Sample
from vllm_kairos.fitting.fit import FitReport, fit

LAW = LinearStepModel(
    prefill=PrefillCost(fixed_s=8e-3, per_token_s=6e-5, per_done_token_s=2e-7, per_attention_work_s=4e-9),
    decode=DecodeCost(fixed_s=11e-3, per_decode_s=4.4e-5, per_kv_token_s=8e-8),
    extra=PrefillCost(fixed_s=2e-3, per_token_s=6e-5, per_done_token_s=3e-7, per_attention_work_s=4e-9),
)


def _shapes() -> list[BatchShape]:
    chunks, offsets = (64, 128, 256, 512, 1024, 2048), (0, 1024, 4096)
    prefill = [BatchShape(running_decodes=0, kv_tokens=p, prefill_tokens=n, done_tokens=p) for n in chunks for p in offsets]
    decode = [BatchShape(running_decodes=b, kv_tokens=b * c) for b in (1, 4, 16, 64, 128) for c in (128, 512, 2048, 4096)]
    mixed = [
        BatchShape(running_decodes=b, kv_tokens=b * 512 + p, prefill_tokens=n, done_tokens=p)
        for n in chunks
        for p in offsets
        for b in (1, 16, 64)
    ]
    return prefill + decode + mixed


def samples(*, noise: float = 0.0, repeats: int = 1, overhead_s: float = 0.0, law: LinearStepModel = LAW) -> list[Sample]:
    """Steps of `law` over a grid of shapes, each time off by up to `noise` of itself."""
    rng = random.Random(7)
    rows = []
    for shape in _shapes():
        for _ in range(repeats):
            step_s = law.step_s(shape) * (1 + rng.uniform(-noise, noise))
            rows.append(Sample(batch=shape, step_s=step_s, period_s=step_s + overhead_s, configuration=str(shape)))
    return rows


def worst_coefficient_error(report: FitReport) -> float:
    """Largest relative error of any coefficient against LAW."""
    pairs = [(report.fitted.prefill, LAW.prefill), (report.fitted.decode, LAW.decode), (report.fitted.extra, LAW.extra)]
    return max(
        abs(getattr(found, name) / getattr(true, name) - 1) for found, true in pairs for name in type(true).__dataclass_fields__
    )


def test_a_clean_law_is_recovered_and_predicted_exactly():
    report = fit(samples())
    assert worst_coefficient_error(report) < 1e-6
    assert report.dropped == ()
    assert set(report.accuracy) == {"prefill", "decode", "mixed"}
    assert all(item.worst_error < 1e-6 for item in report.accuracy.values())


def test_case_78_three_cold_start_rows_at_sixty_times_the_truth_are_dropped_and_reported():
    rows = samples(repeats=3)
    cold = [replace(row, step_s=row.step_s * 60, period_s=None) for row in (rows[0], rows[70], rows[200])]
    report = fit([*cold, *rows])
    assert worst_coefficient_error(report) < 0.05
    assert set(report.dropped) == set(cold)


def test_case_78_cold_rows_that_stand_for_their_whole_configuration_are_dropped_too():
    rows = samples()
    cold = [replace(rows[at], step_s=rows[at].step_s * 60, period_s=None) for at in (2, 25, 60)]
    report = fit([row for at, row in enumerate(rows) if at not in (2, 25, 60)] + cold)
    assert worst_coefficient_error(report) < 0.05
    assert set(report.dropped) == set(cold)


def test_case_80_the_gap_between_steps_is_fitted():
    report = fit(samples(overhead_s=0.004))
    assert report.period_overhead_s == pytest.approx(0.004)


def test_a_step_without_a_known_period_says_nothing_about_the_overhead():
    rows = [replace(row, period_s=None) for row in samples()]
    assert fit(rows).period_overhead_s == 0.0


def test_a_fifth_of_each_regimes_configurations_is_held_out_and_never_shapes_the_fit():
    rows = samples()
    report = fit(rows, seed=3)
    assert report.accuracy["prefill"].configurations == round(18 * 0.2)
    assert report.accuracy["decode"].configurations == round(20 * 0.2)
    assert report.accuracy["mixed"].configurations == round(54 * 0.2)


def test_noise_shows_in_the_held_out_error():
    report = fit(samples(noise=0.1))
    assert 0 < report.accuracy["mixed"].mape < 0.1
    assert report.accuracy["mixed"].mape <= report.accuracy["mixed"].worst_error


def test_limits_are_the_largest_shapes_fitted():
    limits = fit(samples()).fitted.limits
    assert limits is not None
    assert limits.decode.prefill_tokens == 0
    assert limits.prefill.prefill_tokens == 2048
    assert limits.mixed.running_decodes == 64


def test_the_result_depends_on_neither_the_order_of_rows_nor_an_unseeded_draw():
    rows = samples(noise=0.02)
    shuffled = random.Random(1).sample(rows, len(rows))
    first, second = fit(rows), fit(shuffled)
    assert first.accuracy == pytest.approx(second.accuracy) or all(
        first.accuracy[name].mape == pytest.approx(second.accuracy[name].mape, rel=1e-6) for name in first.accuracy
    )


def test_steps_that_get_faster_with_the_prompt_are_refused():
    rows = [
        replace(row, step_s=1 / (1 + row.batch.prefill_tokens)) if not row.batch.running_decodes else row for row in samples()
    ]
    with pytest.raises(ProfileError, match="prefill steps must get slower with prefill_tokens"):
        fit(rows)


def test_coefficients_that_noise_would_push_below_zero_are_held_at_zero():
    flat = replace(LAW, decode=DecodeCost(fixed_s=11e-3, per_decode_s=0.0, per_kv_token_s=0.0))
    decode = fit(samples(noise=0.02, law=flat)).fitted.decode
    assert decode.per_decode_s >= 0
    assert decode.per_kv_token_s >= 0


def test_too_few_configurations_are_refused_by_regime():
    rows = [row for row in samples() if row.batch.prefill_tokens or row.batch.running_decodes == 1]
    with pytest.raises(ProfileError, match="decode steps must cover >= 5 configurations, got 4"):
        fit(rows)


def test_a_profile_that_is_mostly_noise_is_refused():
    rng = random.Random(2)
    rows = [replace(row, step_s=row.step_s * (40 if rng.random() < 0.35 else 1), period_s=None) for row in samples(repeats=4)]
    with pytest.raises(ProfileError, match=r"may be outliers|prefill_tokens|configurations"):
        fit(rows)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_no_time_is_refused(value):
    with pytest.raises(ProfileError, match="step_s must be a finite number > 0"):
        Sample(batch=BatchShape(running_decodes=1, kv_tokens=8), step_s=value, period_s=None, configuration="x")


def test_an_empty_step_is_refused():
    with pytest.raises(ProfileError, match="running_decodes or prefill_tokens"):
        fit([Sample(batch=BatchShape(running_decodes=0, kv_tokens=8), step_s=1.0, period_s=None, configuration="x")])
