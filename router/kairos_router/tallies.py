"""Counters, gauges and histograms of one thread: numbers that are added to, shown by prometheus_client at each scrape.

The library's own take a lock and three calls for each addition, a tenth of what a request costs the router.
Each class's `labels` returns the same child for the same values.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import cache
from itertools import accumulate
from math import inf
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Number:
    """One series of a counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add `amount`."""
        self.value += amount

    def dec(self) -> None:
        """Take 1 away."""
        self.value -= 1


class Spread:
    """One series of a histogram."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one counts what is above every bound
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value` in the first bucket whose bound it does not exceed."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Upper bounds with the numbers of values up to them."""
        return list(zip(map(_shown, (*self.bounds, inf)), accumulate(self.counts), strict=True))


def _shown(bound: float) -> str:
    said: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
    return said


_Child = TypeVar("_Child", Number, Spread)


class _Tally(Collector, Generic[_Child]):
    def __init__(self, name: str, text: str, names: tuple[str, ...], registry: CollectorRegistry, make: Callable[[], _Child]):
        self._name, self._text, self._names = name, text, names
        self._children: dict[tuple[str, ...], _Child] = {}
        self._make: Callable[[], _Child] = make
        self.labels: Callable[..., _Child] = cache(self._labels)
        registry.register(self)

    def _labels(self, *values: str) -> _Child:
        return self._children.setdefault(tuple(map(str, values)), self._make())


class CounterTally(_Tally[Number]):
    """A counter; its name ends in _total."""

    def __init__(self, name: str, text: str, names: tuple[str, ...], registry: CollectorRegistry) -> None:
        super().__init__(name, text, names, registry, Number)

    def collect(self) -> Iterator[Metric]:
        """Show every series."""
        family = CounterMetricFamily(self._name, self._text, labels=self._names)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class GaugeTally(_Tally[Number]):
    """A gauge."""

    def __init__(self, name: str, text: str, names: tuple[str, ...], registry: CollectorRegistry) -> None:
        super().__init__(name, text, names, registry, Number)

    def collect(self) -> Iterator[Metric]:
        """Show every series."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._names)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class HistogramTally(_Tally[Spread]):
    """A histogram."""

    def __init__(
        self, name: str, text: str, names: tuple[str, ...], registry: CollectorRegistry, buckets: tuple[float, ...]
    ) -> None:
        super().__init__(name, text, names, registry, lambda: Spread(tuple(map(float, buckets))))

    def collect(self) -> Iterator[Metric]:
        """Show every series."""
        family = Metric(self._name, self._text, "histogram")
        for values, child in self._children.items():
            labels = dict(zip(self._names, values, strict=True))
            buckets = child.buckets()
            for bound, count in buckets:
                family.add_sample(f"{self._name}_bucket", {**labels, "le": bound}, count)
            family.add_sample(f"{self._name}_count", labels, buckets[-1][1])
            if child.bounds[0] >= 0:  # else the sum may fall, which no counter does
                family.add_sample(f"{self._name}_sum", labels, child.total)
        yield family
