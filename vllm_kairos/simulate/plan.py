"""How many prefill and decode nodes, and which policy, for a load and its objectives at least cost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.plan_judge import Trial, TrialResult, run_trial, to_the_end
from vllm_kairos.simulate.plan_search import PlanConfig, Point, search
from vllm_kairos.simulate.sweep import Cell
from vllm_kairos.simulate.workers import Progress, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One size under one policy, with a result for each seed; it is good when every seed's is."""

    point: Point
    cost: float
    results: tuple[TrialResult, ...]
    good: bool

    @property
    def attainment(self) -> float:
        """Of the worst seed; of runs given up, the most it could have reached."""
        return min(result.attainment for result in self.results)

    @property
    def complete(self) -> bool:
        """Whether every seed's run came to its end."""
        return all(result.figures is not None for result in self.results)

    @property
    def figures(self) -> Figures | None:
        """Of the worst seed; None where its run was given up."""
        return min(self.results, key=lambda result: result.attainment).figures if self.complete else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """`answer` None: no size suffices, and `closest` came closest of what was tried."""

    answer: Candidate | None
    closest: Candidate | None
    tried: tuple[Candidate, ...]


class Planner:
    """Simulates candidates, each once, and remembers them in the order they were tried."""

    def __init__(self, config: SimulateConfig, plan: PlanConfig, run: Run, tell: Progress) -> None:
        self._config, self._plan, self._run, self._tell = config, plan, run, tell
        self.tried: dict[Point, Candidate] = {}

    def judge(self, points: Sequence[Point]) -> list[bool]:
        """Whether each is good enough, giving up on a run once it cannot be."""
        new = [point for point in dict.fromkeys(points) if point not in self.tried]
        self._simulate({point: [self._trial(point, seed) for seed in self._seeds] for point in new})
        return [self.tried[point].good for point in points]

    def finish(self, points: Sequence[Point]) -> None:
        """Run candidates that were given up on to their end."""
        self._simulate({point: [to_the_end(self._trial(point, seed)) for seed in self._seeds] for point in points})

    @property
    def _seeds(self) -> tuple[int, ...]:
        return self._config.sweep.seeds

    def _trial(self, point: Point, seed: int) -> Trial:
        config = replace(self._config, cluster=replace(self._config.cluster, nodes=point.nodes))
        rate = next(iter(config.sweep.rates), None)
        return Trial(cell=Cell(config=config, policy=point.policy, rate_rps=rate, seed=seed), attainment=self._plan.attainment)

    def _simulate(self, trials: dict[Point, list[Trial]]) -> None:
        results = iter(self._run(run_trial, [trial for each in trials.values() for trial in each], self._tell))
        for point, each in trials.items():
            found = tuple(next(results) for _ in each)
            good = all(result.is_good(self._plan) for result in found)
            self.tried[point] = Candidate(point=point, cost=point.cost(self._plan), results=found, good=good)


def check_plan(config: SimulateConfig) -> None:
    """Refuse settings that a plan has no use for. Raises ConfigError."""
    if len(config.sweep.rates) > 1:
        raise ConfigError(f"rates must be at most one for a plan, got {list(config.sweep.rates)}")
    if config.network.racks:
        raise ConfigError(f"racks must be left out of a plan: nodes come and go in it, got {dict(config.network.racks)}")


def of_every_role(config: SimulateConfig) -> SimulateConfig:
    """One node of each: what any candidate is made of, to check settings on before there is one."""
    return replace(config, cluster=replace(config.cluster, nodes="1P1D1B"))


def make_plan(config: SimulateConfig, plan: PlanConfig, run: Run, tell: Progress) -> PlanOutcome:
    """Search for the least-cost size and policy."""
    planner = Planner(config, plan, run, tell)
    answer = search(config.sweep.policies, plan, planner.judge)
    if answer is not None:
        return PlanOutcome(answer=planner.tried[answer], closest=None, tried=tuple(planner.tried.values()))
    planner.finish(_most_hopeful(planner.tried.values()))
    complete = [candidate for candidate in planner.tried.values() if candidate.complete]
    closest = max(complete, key=lambda candidate: (candidate.attainment, -candidate.cost), default=None)
    return PlanOutcome(answer=None, closest=closest, tried=tuple(planner.tried.values()))


def _most_hopeful(tried: Iterable[Candidate]) -> list[Point]:
    """Of each policy's candidates that were given up on, the one that lasted longest."""
    lasted: dict[str, tuple[float, Point]] = {}
    for candidate in tried:
        share = min(result.ended / result.requests for result in candidate.results)
        policy = candidate.point.policy
        if not candidate.complete and share > lasted.get(policy, (-1.0, candidate.point))[0]:
            lasted[policy] = share, candidate.point
    return [point for _, point in lasted.values()]
