"""Which cells there are, which of them share a server, in which order they run, and what they will take: pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.governor.contenders import Contender
from benchmarks.governor.setting import Case
from benchmarks.serving.sweep import CellKey, rotated

_START_S, _EMULATED_START_S = 50.0, 22.0  # of a server, warm-up and end included, on two cores
_DRAIN_SHARE, _CELL_EXTRA_S = 0.5, 3.0  # of the patience, and what settling takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One cell: a case and, within it, contender, rate and repeat."""

    case: Case
    key: CellKey

    def path(self, out: Path) -> Path:
        """Where its record goes."""
        return out / "cells" / self.case.name / self.key.file_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one start of a contender's servers is for."""

    contender: Contender
    places: tuple[Place, ...]

    @property
    def name(self) -> str:
        """For its logs; no two runs have the same."""
        first = self.places[0]
        return f"{first.case.name}-{first.key.file_name.removesuffix('.json')}"

    def without(self, is_done: Callable[[Place], bool]) -> "Run":
        """The same with what is left to do."""
        return Run(contender=self.contender, places=tuple(place for place in self.places if not is_done(place)))


def runs(cases: Sequence[Case], repeats: int) -> Iterator[Run]:
    """Repeat by repeat and group by group of cases with the same servers, contenders in turn, another one first each time.

    A contender whose profile is scaled has a server for each cell: a correction that was learnt once is no recovery.
    """
    for repeat in range(repeats):
        for group in _groups(cases):
            contenders = {each.name: each for case in group for each in case.contenders}
            for name in rotated(list(contenders), repeat):
                places = tuple(_places(group, contenders[name], repeat))
                if contenders[name].is_scaled:
                    yield from (Run(contender=contenders[name], places=(place,)) for place in places)
                else:
                    yield Run(contender=contenders[name], places=places)


def _groups(cases: Sequence[Case]) -> list[list[Case]]:
    groups: list[list[Case]] = []
    for case in cases:
        group = next((each for each in groups if each[0].serves_with(case)), None)
        if group is None:
            groups.append([case])
        else:
            group.append(case)
    return groups


def _places(group: Sequence[Case], contender: Contender, repeat: int) -> Iterator[Place]:
    for case in group:
        if contender in case.contenders:
            for rate_rps in case.rates_of(contender):
                yield Place(case=case, key=CellKey(repeat=repeat, rate_rps=rate_rps, contender=contender.name))


def expected_s(left: Sequence[Run]) -> float:
    """What these runs will take, roughly."""
    return sum(_start_s(run.places[0].case) + sum(map(_cell_s, run.places)) for run in left)


def _start_s(case: Case) -> float:
    return _EMULATED_START_S if "emulate" in case.load.cluster else _START_S


def _cell_s(place: Place) -> float:
    return place.case.load.lasts_s(place.key.rate_rps) + _DRAIN_SHARE * place.case.patience_s + _CELL_EXTRA_S
