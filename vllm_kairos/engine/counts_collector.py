"""Counts that engine cores write, as Prometheus metrics on the server's own /metrics."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from prometheus_client.registry import Collector

Counts = TypeVar("Counts")


class CountsCollector(Collector, Generic[Counts]):
    """Reads the counts when it is scraped; `engine` is the data-parallel rank, as in vLLM's own metrics."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)

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
