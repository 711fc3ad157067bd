"""Token gaps of millions of engine steps, as weighted quantiles in bounded memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.sim.step_log import Gaps

_LEAST_S, _MOST_S = 1e-6, 1e5
_BINS_PER_E = 10_000  # gaps of one bin differ by 0.01 % at most
_BINS = int(np.log(_MOST_S / _LEAST_S) * _BINS_PER_E) + 1
_MOST_STEPS_AT_ONCE = 1_000_000

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GapFigures:
    """TBT over every gap between two tokens, in seconds; None where there is no gap."""

    count: int
    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    most: float | None
    violations: int
    violations_by_cause: dict[str, int]

    @property
    def violation_share(self) -> float:
        """Share of the gaps that are longer than the objective."""
        return self.violations / self.count if self.count else 0.0


def gap_figures(gaps: Iterable[Gaps], objective_s: float) -> GapFigures:
    """Figures of all `gaps`, each weighted by the decodes that felt it; quantiles are within 0.01 %."""
    weights, sums = np.zeros(_BINS), np.zeros(_BINS)
    late = np.zeros(len(Cause))
    most_s = 0.0
    for causes, decodes, values_s in _steps(_table(gaps)):
        bins = _bins(values_s)
        weights += np.bincount(bins, decodes, _BINS)
        sums += np.bincount(bins, decodes * values_s, _BINS)
        late += np.bincount(causes, decodes * (values_s > objective_s), len(Cause))
        most_s = max(most_s, float(values_s.max()))
    count = round(float(weights.sum()))
    p50, p95, p99 = (_quantile(weights, sums, share) for share in (0.5, 0.95, 0.99))
    return GapFigures(
        count=count,
        p50=p50,
        p95=p95,
        p99=p99,
        mean=float(sums.sum()) / count if count else None,
        most=most_s if count else None,
        violations=round(float(late.sum())),
        violations_by_cause={cause.label: round(float(late[cause])) for cause in Cause},
    )


def _table(gaps: Iterable[Gaps]) -> _Floats:
    """A row per run of steps, columns as in Gaps."""
    return np.fromiter(chain.from_iterable(gaps), dtype=np.float64).reshape(-1, len(Gaps._fields))


def _steps(runs: _Floats) -> Iterator[tuple[NDArray[np.int64], _Floats, _Floats]]:
    """Cause, decodes and gap of every step, in batches of bounded size."""
    runs = _split(runs[(runs[:, 1] > 0) & (runs[:, 4] > 0)])
    ends = np.cumsum(runs[:, 4])
    start = 0
    while start < len(runs):
        before = ends[start - 1] if start else 0.0
        end = max(start + 1, int(np.searchsorted(ends, before + _MOST_STEPS_AT_ONCE, "right")))
        yield _expanded(runs[start:end])
        start = end


def _split(runs: _Floats) -> _Floats:
    """Runs of more steps than a batch may hold, cut into several."""
    if not len(runs) or runs[:, 4].max() <= _MOST_STEPS_AT_ONCE:
        return runs
    pieces = np.ceil(runs[:, 4] / _MOST_STEPS_AT_ONCE).astype(np.int64)
    cut = np.repeat(runs, pieces, axis=0)
    done = _positions(pieces) * float(_MOST_STEPS_AT_ONCE)
    cut[:, 2] += done * cut[:, 3]
    cut[:, 4] = np.minimum(cut[:, 4] - done, _MOST_STEPS_AT_ONCE)
    return cut


def _expanded(runs: _Floats) -> tuple[NDArray[np.int64], _Floats, _Floats]:
    steps = runs[:, 4].astype(np.int64)
    values_s = np.repeat(runs[:, 2], steps) + _positions(steps) * np.repeat(runs[:, 3], steps)
    return np.repeat(runs[:, 0].astype(np.int64), steps), np.repeat(runs[:, 1], steps), values_s


def _positions(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ... anew for each of `counts`."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _bins(values_s: _Floats) -> NDArray[np.int64]:
    logs = np.log(np.clip(values_s, _LEAST_S, _MOST_S) / _LEAST_S)
    return np.minimum((logs * _BINS_PER_E).astype(np.int64), _BINS - 1)


def _quantile(weights: _Floats, sums: _Floats, share: float) -> float | None:
    """The mean of the bin below whose end `share` of the weight lies: exact where its gaps are equal."""
    cumulative = np.cumsum(weights)
    if not cumulative[-1]:
        return None
    at = int(np.searchsorted(cumulative, share * cumulative[-1]))
    return float(sums[at] / weights[at])
