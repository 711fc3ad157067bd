"""Measured steps and the features that the linear models see in them; pure, no numpy."""

from dataclasses import dataclass
from math import isfinite

from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel
from vllm_kairos.core.regime import Regime
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ProfileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measured engine step.

    `period_s` is the time from this step's start to the next one's: step plus scheduling and input
    preparation; None where the next step did not follow at once. `configuration` names the planned
    batch shape it was measured under; repeats share it, and so fall on one side of the hold-out.
    `attention_work` is that of its chunks where they are of several prompts; the batch's tokens are their sums.
    Raises ProfileError for a time that is not a finite number > 0.
    """

    batch: BatchShape
    step_s: float
    period_s: float | None = None
    configuration: str
    attention_work: float | None = None  # None: that of one chunk

    def __post_init__(self) -> None:
        for name in ("step_s", "period_s"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ProfileError(f"sample {self.configuration!r}: {name} must be a finite number > 0, got {value}")

    @property
    def chunks(self) -> PrefillTotals:
        """What the step's prefill adds up to."""
        tokens, done = self.batch.prefill_tokens, self.batch.done_tokens
        work = tokens * done + tokens * tokens * 0.5 if self.attention_work is None else self.attention_work
        return PrefillTotals(1, tokens, done, work)

    def predicted_s(self, model: StepLatencyModel) -> float:
        """What `model` predicts for the step."""
        return model.packed_step_s(self.batch.running_decodes, self.batch.kv_tokens, self.chunks)


def regime_of(batch: BatchShape) -> Regime:
    """Say which model predicts `batch`. Raises ProfileError for an empty step."""
    if not (batch.running_decodes or batch.prefill_tokens):
        raise ProfileError("sample: a step must have running_decodes or prefill_tokens, got neither")
    return Regime.of(batch.running_decodes, batch.prefill_tokens)


def prefill_features(sample: Sample) -> tuple[float, ...]:
    """Features of PrefillCost in the order of its fields: 1, n, p, n*p + n*n/2."""
    chunks = sample.chunks
    return 1.0, float(chunks.tokens), float(chunks.done_tokens), chunks.attention_work


def decode_features(sample: Sample) -> tuple[float, ...]:
    """Features of DecodeCost in the order of its fields: 1, B, K."""
    return 1.0, float(sample.batch.running_decodes), float(sample.batch.kv_tokens)
