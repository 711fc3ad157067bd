"""Learns from measured steps how far a latency model is off, and how far single steps are."""

from collections import deque
from collections.abc import Sequence

from vllm_kairos.core.regime import Regime

_FIRST_LOOK, _STEPS_PER_LOOK = 4, 8  # a factor follows no single step, so it need not be worked out anew after each


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` of them do not exceed; there must be one."""
    rank = -int(-share * len(values) // 1)
    return sorted(values)[max(0, rank - 1)]


class Correction:
    """A factor per regime by which predictions are multiplied: the median of measured over predicted, bounded.

    Half of the last `window` steps of a regime must go wrong before the factor follows them, so single stalls do
    not count; a lasting change is followed within some `window / 2` steps. A regime with fewer than four steps
    takes the factor of one that has them, since a slower or faster machine is so in all regimes. Factors lie within
    1/`most`..`most`.
    """

    def __init__(self, *, window: int = 31, most: float = 2.0) -> None:
        self._most = most
        self._ratios: dict[Regime, deque[float]] = {regime: deque(maxlen=window) for regime in Regime}
        self._own: dict[Regime, float] = {}  # of those with a first look
        self._seen = dict.fromkeys(Regime, 0)
        self.factors = dict.fromkeys(Regime, 1.0)

    def observe(self, regime: Regime, ratio: float) -> None:
        """A step took `ratio` times as long as the uncorrected model predicted."""
        ratios = self._ratios[regime]
        ratios.append(ratio)
        seen = self._seen[regime] = self._seen[regime] + 1
        if seen % _STEPS_PER_LOOK == _FIRST_LOOK:
            self._own[regime] = min(max(quantile(ratios, 0.5), 1 / self._most), self._most)
            self.factors.update((each, self._factor(each)) for each in Regime)

    def _factor(self, regime: Regime) -> float:
        return next(self._own[each] for each in (regime, *_STAND_INS[regime]) if each in self._own)


_STAND_INS = {
    Regime.PREFILL: (Regime.MIXED, Regime.DECODE),
    Regime.DECODE: (Regime.MIXED, Regime.PREFILL),
    Regime.MIXED: (Regime.DECODE, Regime.PREFILL),
}


class MeasuredMargin:
    """The share of the time to a deadline that a predicted step may take so that few steps end after it.

    1 over the quantile `kept` of measured over (corrected) prediction of the last `window` steps, within 0.5..1;
    `start` until there are `enough` of them.
    """

    def __init__(self, start: float = 0.9, *, window: int = 100, enough: int = 20, kept: float = 0.97) -> None:
        self._ratios: deque[float] = deque(maxlen=window)
        self._enough, self._kept = enough, kept
        self._seen = 0
        self.share = start

    def observe(self, ratio: float) -> None:
        """A step took `ratio` times as long as predicted, with correction."""
        self._ratios.append(ratio)
        self._seen += 1
        if self._seen % _STEPS_PER_LOOK == _FIRST_LOOK and len(self._ratios) >= self._enough:
            self.share = 1 / min(max(quantile(self._ratios, self._kept), 1.0), 2.0)
