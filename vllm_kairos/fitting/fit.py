"""Fit the three linear models to measured steps, with scikit-learn; the only module here that needs numpy."""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LinearRegression

from vllm_kairos.core.linear import DecodeCost, FittedLimits, LinearStepModel, PrefillCost, ShapeLimits
from vllm_kairos.core.regime import Regime
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import Accuracy
from vllm_kairos.fitting.features import Sample, decode_features, prefill_features, regime_of

HELD_OUT_SHARE = 0.2
_LEAST_CONFIGURATIONS = 5  # per regime: one held out, and as many as the prefill model has features
_LEAST_OUTLIER_RATIO = 1.5  # a step this far off the fit may be dropped, however tight the others are
_OUTLIER_DEVIATIONS = 8.0  # in robust standard deviations of the logarithm
_MOST_DROPPED_SHARE = 0.2
_ROUNDS = 10

_Floats = npt.NDArray[np.float64]
_BySample = Mapping[Regime, Sequence[Sample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitReport:
    """A fitted model and how far to trust it."""

    fitted: LinearStepModel
    period_overhead_s: float
    """Median seconds between one step's end and the next one's start."""
    accuracy: Mapping[str, Accuracy]
    """By model: prefill, decode, mixed; on the configurations held out of the fit."""
    dropped: tuple[Sample, ...]
    """Outliers that neither the fit nor its errors know."""


def fit(samples: Sequence[Sample], *, seed: int = 0) -> FitReport:
    """Fit the models on four fifths of each regime's configurations and measure their error on the rest.

    Raises ProfileError where a regime has too few configurations or too many outliers, or where the
    steps do not get slower as the prompt chunk grows.
    """
    regimes = {regime: [item for item in samples if regime_of(item.batch) is regime] for regime in Regime}
    for regime, rows in regimes.items():
        _check_enough(regime, rows)
    clean = _without_outliers(regimes)
    held_out = {regime: _held_out_names(rows, seed) for regime, rows in clean.items()}
    train = {regime: [row for row in rows if row.configuration not in held_out[regime]] for regime, rows in clean.items()}
    model = _fit_models(train)
    test = {regime: [row for row in rows if row.configuration in held_out[regime]] for regime, rows in clean.items()}
    kept = {id(row) for rows in clean.values() for row in rows}
    return FitReport(
        fitted=model,
        period_overhead_s=_period_overhead_s([row for rows in clean.values() for row in rows]),
        accuracy={regime.value: _accuracy(model, rows) for regime, rows in test.items()},
        dropped=tuple(row for row in samples if id(row) not in kept),
    )


def _check_enough(regime: Regime, rows: Sequence[Sample]) -> None:
    found = len({row.configuration for row in rows})
    if found < _LEAST_CONFIGURATIONS:
        raise ProfileError(f"samples: {regime} steps must cover >= {_LEAST_CONFIGURATIONS} configurations, got {found}")


def _fit_models(train: _BySample) -> LinearStepModel:
    prefill = PrefillCost(**_named(PrefillCost, _least_squares(train[Regime.PREFILL], prefill_features)))
    decode = DecodeCost(**_named(DecodeCost, _least_squares(train[Regime.DECODE], decode_features)))
    if not (prefill.per_token_s or prefill.per_attention_work_s):
        sizes = [row.batch.prefill_tokens for row in train[Regime.PREFILL]]
        spread = f"{min(sizes)} to {max(sizes)}"
        raise ProfileError(f"samples: prefill steps must get slower with prefill_tokens, got no growth from {spread}")
    return LinearStepModel(
        prefill=prefill,
        decode=decode,
        extra=_fit_extra(train[Regime.MIXED], prefill, decode),
        limits=FittedLimits(**{regime.value: _limits(rows) for regime, rows in train.items()}),
    )


def _fit_extra(rows: Sequence[Sample], prefill: PrefillCost, decode: DecodeCost) -> PrefillCost:
    """Fit what a chunk adds to a decode step, on the steps that are not explained by the chunk alone.

    Which steps those are depends on the result, so the two are settled in turn.
    """
    active = list(rows)
    extra = PrefillCost(**_named(PrefillCost, _least_squares(active, prefill_features, decode)))
    for _ in range(_ROUNDS):
        model = LinearStepModel(prefill=prefill, decode=decode, extra=extra)
        beside = [row for row in rows if row.predicted_s(model) > model.prefill_total_s(row.chunks)]
        if beside == active or len(beside) < _LEAST_CONFIGURATIONS:
            break
        active = beside
        extra = PrefillCost(**_named(PrefillCost, _least_squares(active, prefill_features, decode)))
    return extra


def _least_squares(
    rows: Sequence[Sample], features: Callable[[Sample], tuple[float, ...]], decode: DecodeCost | None = None
) -> _Floats:
    """Return coefficients >= 0 that minimise squared relative errors of `rows` less their decode cost.

    Columns are scaled to one: attention work is a billion times the constant.
    """
    measured = np.array([row.step_s for row in rows])
    base = np.array([decode.at(row.batch.running_decodes, row.batch.kv_tokens) if decode else 0.0 for row in rows])
    weighted = np.array([features(row) for row in rows]) / measured[:, None]
    scale = np.abs(weighted).max(axis=0)
    scale[scale == 0] = 1.0
    regression = LinearRegression(positive=True, fit_intercept=False)
    regression.fit(weighted / scale, (measured - base) / measured)
    coefficients: _Floats = regression.coef_ / scale
    return coefficients


def _named(kind: type[PrefillCost] | type[DecodeCost], coefficients: _Floats) -> dict[str, float]:
    return dict(zip(kind.__dataclass_fields__, map(float, coefficients), strict=True))


def _limits(rows: Sequence[Sample]) -> ShapeLimits:
    return ShapeLimits(**{name: max(getattr(row.batch, name) for row in rows) for name in ShapeLimits.__dataclass_fields__})


def _without_outliers(regimes: _BySample) -> dict[Regime, list[Sample]]:
    """Drop the steps that lie far off a fit of all the others, until none does.

    Relative errors bound a slow step's pull on the fit, so even the first fit runs through the bulk.
    """
    clean = {regime: list(rows) for regime, rows in regimes.items()}
    for _ in range(_ROUNDS):
        model = _fit_models(clean)
        near = {regime: _near(model, rows) for regime, rows in clean.items()}
        if near == clean:
            break
        clean = near
    for regime, rows in clean.items():
        found, kept = len(regimes[regime]), len(rows)
        if found - kept > found * _MOST_DROPPED_SHARE:
            raise ProfileError(
                f"samples: at most {_MOST_DROPPED_SHARE:.0%} of {regime} steps may be outliers, got {found - kept} of {found}"
            )
        _check_enough(regime, rows)
    return clean


def _near(model: LinearStepModel, rows: Sequence[Sample]) -> list[Sample]:
    ratios = np.log([row.step_s / max(row.predicted_s(model), 1e-12) for row in rows])
    deviation = float(np.median(np.abs(ratios - np.median(ratios)))) * 1.4826
    allowed = max(float(np.log(_LEAST_OUTLIER_RATIO)), _OUTLIER_DEVIATIONS * deviation)
    far = np.abs(ratios - np.median(ratios)) > allowed
    return [row for row, is_far in zip(rows, far, strict=True) if not is_far]


def _held_out_names(rows: Sequence[Sample], seed: int) -> frozenset[str]:
    names = sorted({row.configuration for row in rows})
    return frozenset(random.Random(seed).sample(names, max(1, round(len(names) * HELD_OUT_SHARE))))


def _accuracy(model: LinearStepModel, rows: Sequence[Sample]) -> Accuracy:
    """Measure errors by configuration: the median over its steps, since the spread of repeats is not the model's."""
    errors = defaultdict(list)
    for row in rows:
        errors[row.configuration].append(row.predicted_s(model) / row.step_s - 1)
    by_configuration = [abs(median(values)) for values in errors.values()]
    return Accuracy(mape=fmean(by_configuration), worst_error=max(by_configuration), configurations=len(by_configuration))


def _period_overhead_s(rows: Sequence[Sample]) -> float:
    gaps = [row.period_s - row.step_s for row in rows if row.period_s is not None]
    return max(0.0, median(gaps)) if gaps else 0.0
