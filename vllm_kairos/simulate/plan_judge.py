"""One candidate cluster under the whole load, given up on once it cannot be good enough any more."""

from dataclasses import dataclass, replace
from math import floor

from vllm_kairos.simulate.build import build_objectives
from vllm_kairos.simulate.figures import Figures, figures_of
from vllm_kairos.simulate.plan_search import PlanConfig
from vllm_kairos.simulate.sweep import Cell, cell_workload, in_batches, make_simulation
from vllm_kairos.simulate.workers import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A cell to run; it is given up on once fewer than `attainment` of its requests can attain their objectives."""

    cell: Cell
    attainment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """Figures of a whole run, or None of one that was given up after `ended` requests."""

    figures: Figures | None
    requests: int
    ended: int
    misses: int

    @property
    def attainment(self) -> float:
        """Share of the requests that attained their objectives; of a run given up, the most it could have reached."""
        return 1 - self.misses / self.requests

    def is_good(self, plan: PlanConfig) -> bool:
        """Whether the whole load was served well enough."""
        figures = self.figures
        if figures is None or figures.slo_attainment < plan.attainment:
            return False
        return figures.tbt_s.violation_share <= plan.tbt_violations


def most_misses(requests: int, attainment: float) -> int:
    """How many of `requests` may miss their objectives."""
    return floor(requests * (1 - attainment) + 1e-9)


class _HopelessError(Exception):
    """Too many requests have missed their objectives."""


def run_trial(trial: Trial, tell: Progress) -> TrialResult:
    """Run it to the end, or until it is hopeless."""
    objectives, report = build_objectives(trial.cell.config), in_batches(tell)
    workload = cell_workload(trial.cell)
    requests, misses = len(workload.requests), 0
    most = most_misses(requests, trial.attainment)

    def ended(count: int) -> None:
        nonlocal misses
        report(count)
        last = next(reversed(simulation.records.values()))
        misses += not last.attains(objectives)
        if misses > most:
            raise _HopelessError

    simulation = make_simulation(trial.cell, workload, ended)
    try:
        figures = figures_of(simulation.run(), objectives)
    except _HopelessError:
        return TrialResult(figures=None, requests=requests, ended=len(simulation.records), misses=misses)
    return TrialResult(figures=figures, requests=requests, ended=requests, misses=misses)


def to_the_end(trial: Trial) -> Trial:
    """The same trial without giving up."""
    return replace(trial, attainment=0.0)
