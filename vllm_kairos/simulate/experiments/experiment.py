"""What an experiment is: the sweeps it needs, and what their figures are compared with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.table import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number, beside the one it is compared with; None: not printed, or not to be had from these runs.

    `spread` is the least and the most over the seeds, where there are several and `ours` is their median.
    """

    quantity: str
    expected: float | None
    ours: float | None
    unit: str = ""
    remark: str = ""
    spread: tuple[float, float] | None = None

    @property
    def full_remark(self) -> str:
        """With the spread."""
        over_seeds = "" if self.spread is None else f"{self.spread[0]:.4g} to {self.spread[1]:.4g} over the seeds"
        return "; ".join(filter(None, (self.remark, over_seeds)))

    def as_json(self) -> dict[str, Any]:
        """All of it; without a spread where there is none."""
        fields = asdict(self) | {"difference": self.difference}
        return {name: value for name, value in fields.items() if name != "spread" or value is not None}

    @property
    def difference(self) -> float | None:
        """Ours relative to the expected one, less 1."""
        return self.ours / self.expected - 1 if self.ours is not None and self.expected else None


@dataclass(frozen=True, slots=True)
class Panel:
    """One plot of figure.png: `read` times `factor` against the rate, a line per policy."""

    title: str
    read: Callable[[Figures], float | None]
    factor: float = 1.0
    limit: float | None = None  # an objective, drawn across
    marks: Sequence[tuple[float, float]] = ()  # what the paper prints, by rate


Groups = Mapping[str, Sequence[Group]]
"""By the sweep's label: its figures by policy and rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`sweeps` gives configurations by label; flags set by the user override all of them. `rows` must cope with any grid.

    `panels` are drawn from the first sweep.
    """

    name: str
    summary: str
    sweeps: Callable[[], Mapping[str, SimulateConfig]]
    rows: Callable[[Groups], Sequence[Row]]
    expected_from: str = "the paper"
    panels: Sequence[Panel] = ()


def group_at(groups: Sequence[Group], policy: str, rate_rps: float | None = None) -> Group | None:
    """The group of `policy` at `rate_rps`; None where the grid has no such point."""
    found = [group for group in groups if (group.policy, group.rate_rps) == (policy, rate_rps)]
    return found[0] if found else None


def spread_of(values: Sequence[float]) -> tuple[float, float] | None:
    """The least and the most of one value per seed; None of a single seed."""
    return (min(values), max(values)) if len(values) > 1 else None


def rates_of(groups: Sequence[Group]) -> list[float]:
    """The rates of the grid, ascending."""
    return sorted({group.rate_rps for group in groups if group.rate_rps is not None})


def policies_of(groups: Sequence[Group]) -> list[str]:
    """The policies of the grid, in its order."""
    return list(dict.fromkeys(group.policy for group in groups))
