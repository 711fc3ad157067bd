"""Counts that engine cores write, as Prometheus metrics on the server's own /metrics."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

Counts = TypeVar("Counts")


class CountsCollector(Collector, Generic[Counts]):
    """Reads the counts when it is scraped; `engine` is the data-parallel rank, as in vLLM's own metrics."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

    @classmethod
    def of_ranks(cls, vllm_config: Any, path_of: Callable[[int], Path]) -> Self:
        """The collector of this server's engine cores; `path_of` says where the counts of a data-parallel rank are."""
        return cls([path_of(rank) for rank in range(vllm_config.parallel_config.data_parallel_size)])

    def describe(self) -> Iterable[Any]:
        """Nothing to check names against: there may be no counts yet."""
        return []

    def collect(self) -> Iterator[Any]:
        """Every metric of every rank that has written its counts."""
        found = [(str(rank), self.read(path)) for rank, path in enumerate(self._paths)]
        engines = [(rank, counts) for rank, counts in found if counts is not None]
        if engines:
            yield from self.metrics(engines)

    @abstractmethod
    def read(self, path: Path) -> Counts | None:
        """The counts of one rank; None before it wrote any."""

    @abstractmethod
    def metrics(self, engines: Sequence[tuple[str, Counts]]) -> Iterator[Any]:
        """The families of all ranks that have counts."""


def plain_counters(named: Iterable[tuple[str, str, str]], engines: Sequence[tuple[str, Any]]) -> Iterator[CounterMetricFamily]:
    """A counter for each name, help text and field of the counts."""
    for name, text, field in named:
        family = CounterMetricFamily(name, text, labels=["engine"])
        for engine, counts in engines:
            family.add_metric([engine], getattr(counts, field))
        yield family
