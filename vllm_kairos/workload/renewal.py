"""Arrivals of one client whose rate and burstiness change from window to window."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import exp, lgamma
from random import Random
from typing import Literal

WINDOW_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One client's traffic over `WINDOW_S` seconds: its mean rate, and the law of its gaps by family and shape."""

    start_s: float
    rate_rps: float
    family: Literal["Gamma", "Weibull"]
    shape: float

    def unit_gap(self, rng: Random) -> float:
        """A gap drawn from the law with mean 1."""
        if self.family == "Gamma":
            return rng.gammavariate(self.shape, 1 / self.shape)
        return rng.weibullvariate(self._weibull_scale(), self.shape)

    def unit_wait(self, rng: Random) -> float:
        """The wait for the next arrival seen at a random moment: a uniform part of a gap weighted by its length."""
        if self.family == "Gamma":
            gap = rng.gammavariate(self.shape + 1, 1 / self.shape)
        else:
            gap = self._weibull_scale() * rng.gammavariate(1 + 1 / self.shape, 1.0) ** (1 / self.shape)
        return rng.random() * gap

    def _weibull_scale(self) -> float:
        return exp(-lgamma(1 + 1 / self.shape))


def client_arrivals_s(windows: Iterable[Window], speed: float, rng: Random) -> Iterator[float]:
    """Arrivals of one client over its windows, given in time order, with every rate multiplied by `speed`.

    The client is met in mid-stream, and a gap that a window's end cuts goes on in the next at that one's rate; so the
    mean rate is each window's own. A client sends nothing between windows that do not touch.
    """
    wait: float | None = None
    for window in windows:
        rate_rps = window.rate_rps * speed
        expected = rate_rps * WINDOW_S
        at = window.unit_wait(rng) if wait is None else wait
        while at < expected:
            yield window.start_s + at / rate_rps
            at += window.unit_gap(rng)
        wait = at - expected
