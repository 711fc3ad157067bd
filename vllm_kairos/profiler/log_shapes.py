"""Recorded steps gathered by their shape: what a shape's steps usually take is one sample for the fit. Pure."""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, log1p
from statistics import fmean, median
from typing import NamedTuple

from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.features import Sample, regime_of

LEAST_STEPS = 50
"""Of each kind of step."""
LEAST_SHAPES = {Regime.PREFILL: 8, Regime.DECODE: 6, Regime.MIXED: 8}  # their coefficients, twice
LEAST_SPANS: Mapping[Regime, Mapping[str, float]] = {
    Regime.PREFILL: {"prefill tokens": 4.0},
    Regime.DECODE: {"decodes": 2.0, "KV tokens each": 1.5},
    Regime.MIXED: {"prefill tokens": 4.0},
}
"""By how much a quantity must vary for its share of the time to show: the largest by the smallest."""

_WIDTH = log(1.25)  # steps whose quantities lie within a quarter of each other are of one shape
_KEPT_STEPS = 1000  # of each shape, the last ones
_USUAL_RATIO = 1.5  # a step this far off its shape's median is not usual


class _Step(NamedTuple):
    took_s: float
    running_decodes: int
    kv_tokens: int
    prefill_tokens: int
    done_tokens: int
    attention_work: float


@dataclass(slots=True)
class ShapeTable:
    """Steps by shape."""

    steps: Counter[Regime] = field(default_factory=Counter)
    _shapes: dict[tuple[int, ...], deque[_Step]] = field(default_factory=dict)

    def add(self, batch: BatchShape, took_s: float, attention_work: float | None = None) -> None:
        """Take one step; `attention_work` None: that of one chunk. A step without work or time says nothing."""
        if not (batch.running_decodes or batch.prefill_tokens) or took_s <= 0:
            return
        decodes, kv, tokens, done = batch.running_decodes, batch.kv_tokens, batch.prefill_tokens, batch.done_tokens
        key = tuple(round(log1p(value) / _WIDTH) for value in (decodes, kv, tokens, done, attention_work or 0))
        work = tokens * done + tokens * tokens * 0.5 if attention_work is None else attention_work
        steps = self._shapes.setdefault(key, deque(maxlen=_KEPT_STEPS))
        steps.append(_Step(took_s, decodes, kv, tokens, done, work))
        self.steps[regime_of(batch)] += 1

    def samples(self) -> list[Sample]:
        """One for each shape: the mean of its usual steps, which a linear law keeps whatever the steps' spread."""
        return [_sample(steps, str(key)) for key, steps in self._shapes.items()]


def _sample(steps: Sequence[_Step], name: str) -> Sample:
    centre_s = median(step.took_s for step in steps)
    usual = [step for step in steps if centre_s / _USUAL_RATIO <= step.took_s <= centre_s * _USUAL_RATIO]
    mean = [fmean(column) for column in zip(*(usual or steps), strict=True)]
    return Sample(
        batch=BatchShape(
            running_decodes=round(mean[1]), kv_tokens=round(mean[2]), prefill_tokens=round(mean[3]), done_tokens=round(mean[4])
        ),
        step_s=mean[0],
        configuration=name,
        attention_work=mean[5],
    )


def require_span(samples: Sequence[Sample], steps: Mapping[Regime, int]) -> None:
    """Raise ProfileError naming all that is missing: kinds of steps, shapes, and quantities that hardly vary."""
    missing = [f"{regime}: {lack}" for regime in Regime for lack in _lacks(regime, samples, steps[regime])]
    if missing:
        advice = "add files of other nodes (prefill and decode) and of busier and quieter hours"
        raise ProfileError(f"recorded steps must span every model, these do not ({'; '.join(missing)}): {advice}")


def _lacks(regime: Regime, samples: Sequence[Sample], steps: int) -> list[str]:
    if steps < LEAST_STEPS:
        return [f"{steps} of {LEAST_STEPS} steps"]
    of_regime = [sample.batch for sample in samples if regime_of(sample.batch) is regime]
    if len(of_regime) < LEAST_SHAPES[regime]:
        return [f"{len(of_regime)} of {LEAST_SHAPES[regime]} shapes"]
    found = []
    for name, least in LEAST_SPANS[regime].items():
        values = [_QUANTITIES[name](batch) for batch in of_regime]
        if max(values) < least * max(1, min(values)):
            found.append(f"{name} {min(values):.0f} to {max(values):.0f}, needs {least:g} times")
    return found


_QUANTITIES: Mapping[str, Callable[[BatchShape], float]] = {
    "prefill tokens": lambda batch: batch.prefill_tokens,
    "decodes": lambda batch: batch.running_decodes,
    "KV tokens each": lambda batch: batch.kv_tokens / batch.running_decodes,
}
