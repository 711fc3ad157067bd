"""What an experiment is: the sweeps it needs, and what their figures are compared with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.table import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number, beside the one it is compared with; None: not printed, or not to be had from these runs."""

    quantity: str
    expected: float | None
    ours: float | None
    unit: str = ""
    remark: str = ""

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


def rates_of(groups: Sequence[Group]) -> list[float]:
    """The rates of the grid, ascending."""
    return sorted({group.rate_rps for group in groups if group.rate_rps is not None})


def policies_of(groups: Sequence[Group]) -> list[str]:
    """The policies of the grid, in its order."""
    return list(dict.fromkeys(group.policy for group in groups))
