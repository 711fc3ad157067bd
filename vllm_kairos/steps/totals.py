"""Counts of one engine's steps and gaps since its start, and their JSON form, which the API server reads."""

from bisect import bisect_left
from collections.abc import Iterable

import msgspec

from vllm_kairos.core.regime import Regime
from vllm_kairos.errors import StateError
from vllm_kairos.steps.attribution import GAP_CAUSES
from vllm_kairos.steps.gap_tracker import Gap

GAP_BUCKETS_S = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
RATIO_BUCKETS = (0.5, 0.75, 0.9, 0.95, 0.97, 1.0, 1.03, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
TOTALS_SCHEMA = 1


def _zeros(bounds: tuple[float, ...]) -> list[int]:
    return [0] * (len(bounds) + 1)


class CauseTotals(msgspec.Struct):
    """Gaps put down to one cause; `buckets` count them by GAP_BUCKETS_S, each apart, the last one for what is longer."""

    gaps: int = 0
    violations: int = 0
    gap_s: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: _zeros(GAP_BUCKETS_S))


class RegimeTotals(msgspec.Struct):
    """Steps of one regime; the sums and `buckets`, by RATIO_BUCKETS, are of the steps that had a prediction."""

    steps: int = 0
    actual_s: float = 0.0
    predicted_s: float = 0.0
    ratio_sum: float = 0.0
    buckets: list[int] = msgspec.field(default_factory=lambda: _zeros(RATIO_BUCKETS))


class StepTotals(msgspec.Struct):
    """Everything counted since the engine's start; `causes` by Cause.label, `regimes` by Regime."""

    schema: int = TOTALS_SCHEMA
    dropped_lines: int = 0
    causes: dict[str, CauseTotals] = msgspec.field(default_factory=lambda: {cause.label: CauseTotals() for cause in GAP_CAUSES})
    regimes: dict[str, RegimeTotals] = msgspec.field(default_factory=lambda: {str(regime): RegimeTotals() for regime in Regime})

    def add_step(self, regime: Regime, actual_s: float, predicted_s: float | None) -> None:
        """Count one step."""
        totals = self.regimes[regime]
        totals.steps += 1
        if predicted_s:
            ratio = actual_s / predicted_s
            totals.actual_s += actual_s
            totals.predicted_s += predicted_s
            totals.ratio_sum += ratio
            totals.buckets[bisect_left(RATIO_BUCKETS, ratio)] += 1

    def add_gaps(self, gaps: Iterable[Gap], tbt_slo_s: float) -> None:
        """Count the gaps that a step ended."""
        for cause, count, gap_s in gaps:
            totals = self.causes[cause.label]
            totals.gaps += count
            totals.gap_s += count * gap_s
            totals.buckets[bisect_left(GAP_BUCKETS_S, gap_s)] += count
            if gap_s > tbt_slo_s:
                totals.violations += count


def encode_totals(totals: StepTotals) -> bytes:
    """The JSON form of `totals`."""
    return msgspec.json.encode(totals)


def decode_totals(data: bytes) -> StepTotals:
    """Read what `encode_totals` wrote; StateError says what is wrong with it."""
    try:
        totals = msgspec.json.decode(data, type=StepTotals)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StateError(f"step totals: {error}") from error
    if totals.schema != TOTALS_SCHEMA:
        raise StateError(f"step totals: schema must be {TOTALS_SCHEMA}, got {totals.schema}")
    return totals
