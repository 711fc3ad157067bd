"""What an experiment is: the sweeps it needs, and what their figures are compared with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vllm_kairos.simulate.config import SimulateConfig
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


Groups = Mapping[str, Sequence[Group]]
"""By the sweep's label: its figures by policy and rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """`sweeps` gives configurations by label; flags set by the user override all of them. `rows` must cope with any grid."""

    name: str
    summary: str
    sweeps: Callable[[], Mapping[str, SimulateConfig]]
    rows: Callable[[Groups], Sequence[Row]]
    expected_from: str = "the paper"


def group_at(groups: Sequence[Group], policy: str, rate_rps: float | None = None) -> Group | None:
    """The group of `policy` at `rate_rps`; None where the grid has no such point."""
    found = [group for group in groups if (group.policy, group.rate_rps) == (policy, rate_rps)]
    return found[0] if found else None


def rates_of(groups: Sequence[Group]) -> list[float]:
    """The rates of the grid, ascending."""
    return sorted({group.rate_rps for group in groups if group.rate_rps is not None})
