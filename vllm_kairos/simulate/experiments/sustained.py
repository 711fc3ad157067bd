"""Up to which request rate a policy keeps what was asked of it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.table import Group


class Criterion(NamedTuple):
    """Holds while the median over the seeds of what `read` takes is at most `limit`."""

    name: str
    read: Callable[[Figures], float]
    limit: float


def p95_criterion(ttft_slo_s: float, tbt_slo_s: float) -> Criterion:
    """P95 TTFT and P95 TBT both within their objectives (section 6.1.1)."""

    def strain(one: Figures) -> float:
        return max((one.ttft_s.p95 or 0.0) / ttft_slo_s, (one.tbt_s.p95 or 0.0) / tbt_slo_s)

    return Criterion("P95 TTFT and P95 TBT within their objectives", strain, 1.0)


def attainment_criterion(share: float) -> Criterion:
    """At least `share` of the requests attain both objectives."""
    return Criterion(f"{share:.0%} joint attainment", lambda one: 1 - one.slo_attainment, round(1 - share, 9))


def sustained_rps(groups: Sequence[Group], policy: str, criterion: Criterion) -> float | None:
    """The highest rate of the grid at which and below which `criterion` holds; None: at none."""
    best = None
    for rate, value in _curve(groups, policy, criterion):
        if value > criterion.limit:
            break
        best = rate
    return best


def crossing_rps(groups: Sequence[Group], policy: str, criterion: Criterion) -> float | None:
    """Where `criterion` stops to hold, on the straight line between two rates; None: not within the grid."""
    for (low, before), (high, after) in pairwise(_curve(groups, policy, criterion)):
        if before <= criterion.limit < after:
            return low + (high - low) * (criterion.limit - before) / (after - before)
    return None


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """Ours over theirs, where both are known."""
    return ours / theirs if ours is not None and theirs else None


def _curve(groups: Sequence[Group], policy: str, criterion: Criterion) -> list[tuple[float, float]]:
    own = [(group.rate_rps or 0.0, group.middle(criterion.read)) for group in groups if group.policy == policy]
    return sorted((rate, value) for rate, value in own if value is not None)
