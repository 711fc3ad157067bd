"""Token lengths from the few quantiles that a paper prints."""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, log
from statistics import NormalDist

_NORMAL = NormalDist()
_INVERSION_STEPS = 60


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A smooth long-tailed distribution of token counts through the given quantiles.

    The logarithm of a length is a monotone piecewise cubic (Fritsch and Carlson) of the standard normal deviate of
    its rank, so two quantiles would make a lognormal. Beyond the outermost quantiles the curve goes on straight: both
    tails are lognormal with the spread of the nearest segment.
    """

    deviates: tuple[float, ...]
    logs: tuple[float, ...]
    slopes: tuple[float, ...]

    @classmethod
    def through(cls, quantiles: Mapping[float, float]) -> "LengthDistribution":
        """The distribution whose quantile at each rank in (0, 1) is the given length; both must increase together."""
        points = sorted(quantiles.items())
        deviates = tuple(_NORMAL.inv_cdf(rank) for rank, _ in points)
        logs = tuple(log(length) for _, length in points)
        return cls(deviates, logs, _monotone_slopes(deviates, logs))

    def quantile(self, rank: float) -> float:
        """The length, in tokens and not rounded, that a share `rank` in (0, 1) of the requests stays below."""
        return exp(self._log_at(_NORMAL.inv_cdf(rank)))

    def rank(self, length: float) -> float:
        """The share of the requests that stay below `length` > 0: the inverse of `quantile`."""
        low, high, target = -8.0, 8.0, log(length)
        for _ in range(_INVERSION_STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._log_at(middle) < target else (low, middle)
        return _NORMAL.cdf((low + high) / 2)

    def _log_at(self, deviate: float) -> float:
        last = len(self.deviates) - 1
        if deviate <= self.deviates[0]:
            return self.logs[0] + self.slopes[0] * (deviate - self.deviates[0])
        if deviate >= self.deviates[last]:
            return self.logs[last] + self.slopes[last] * (deviate - self.deviates[last])
        left = bisect_right(self.deviates, deviate) - 1
        width = self.deviates[left + 1] - self.deviates[left]
        return _hermite(
            (deviate - self.deviates[left]) / width,
            (self.logs[left], self.logs[left + 1]),
            (self.slopes[left] * width, self.slopes[left + 1] * width),
        )


def _hermite(t: float, ends: tuple[float, float], tangents: tuple[float, float]) -> float:
    """The cubic on [0, 1] with these values and tangents at its ends."""
    rise = ends[1] - ends[0]
    bend = tangents[0] + tangents[1] - 2 * rise
    return ends[0] + t * (tangents[0] + t * (3 * rise - 2 * tangents[0] - tangents[1] + t * bend))


def _monotone_slopes(xs: tuple[float, ...], ys: tuple[float, ...]) -> tuple[float, ...]:
    """Slopes at the points that keep the curve increasing: harmonic means inside, the segment's own at the ends."""
    secants = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(zip(xs, ys, strict=True))]
    inner = [2 / (1 / before + 1 / after) for before, after in pairwise(secants)]
    return (secants[0], *inner, secants[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The part of a distribution between two ranks, leaned so that its median is the one given."""

    distribution: LengthDistribution
    low_rank: float
    high_rank: float
    lean: float

    @classmethod
    def with_median(cls, distribution: LengthDistribution, *, low_rank: float, high_rank: float, median: float) -> "Bucket":
        """Ranks in the bucket are `low + (high - low) * u ** lean`, `lean` being such that u = 1/2 gives `median`."""
        share = (distribution.rank(median) - low_rank) / (high_rank - low_rank)
        if not 0 < share < 1:
            raise ValueError(f"median must lie within ranks {low_rank} to {high_rank}, got {median}")
        return cls(distribution=distribution, low_rank=low_rank, high_rank=high_rank, lean=log(share) / log(0.5))

    def tokens(self, uniform: float, most: float = inf) -> int:
        """The length for a uniform draw in (0, 1), rounded, at least 1 and at most `most` tokens."""
        rank = self.low_rank + (self.high_rank - self.low_rank) * uniform**self.lean
        return int(min(max(round(self.distribution.quantile(rank)), 1), most))
