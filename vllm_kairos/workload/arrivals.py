"""Arrival times drawn from a renewal process."""

from collections.abc import Iterator
from itertools import accumulate, islice
from math import isfinite
from random import Random

from vllm_kairos.errors import WorkloadError

MOST_SCV = 1e3
"""Burstier draws have nearly all of their arrivals at one instant, and no mean rate to speak of."""

MOST_SHAPE = 1e9
"""Gamma gaps of a larger shape differ by less than 1 in 10,000, and the sampler rounds its way into an endless loop."""


def arrival_times_s(count: int, *, rate_rps: float, scv: float, rng: Random) -> list[float]:
    """`count` arrivals, the first at 0 s, with gaps of mean `1 / rate_rps` and squared coefficient of variation `scv`.

    Gaps are Gamma distributed: `scv` 1 is a Poisson process, 0 an even spacing, more than 1 bursty. The gaps of two
    rates differ by a factor only, so a rate sweep with one seed replays one pattern faster.
    Raises WorkloadError naming the argument, the rule and the value.
    """
    _require("rate_rps", rate_rps, isfinite(rate_rps) and rate_rps > 0, "a finite number > 0")
    _require("scv", scv, 0 <= scv <= MOST_SCV, f"in [0, {MOST_SCV:g}]")
    gaps = islice(_unit_gaps(scv, rng), max(count - 1, 0))
    return [arrival / rate_rps for arrival in accumulate(gaps, initial=0.0)][:count]


def _unit_gaps(scv: float, rng: Random) -> Iterator[float]:
    while True:
        yield rng.gammavariate(1 / scv, scv) if scv > 1 / MOST_SHAPE else 1.0


def _require(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise WorkloadError(f"{name} must be {rule}, got {value}")
