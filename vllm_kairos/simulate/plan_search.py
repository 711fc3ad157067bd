"""The least-cost cluster: which sizes to try, in which order, and when to stop. Pure."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from vllm_kairos.sim.aggregated import is_aggregated
from vllm_kairos.simulate.sections import option, require


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """What is good enough, and what may be spent on it. Raises ConfigError naming field, rule and value."""

    attainment: float = option(0.99, "share of requests that must attain both objectives (0.99)")
    tbt_violations: float = option(1.0, "most gaps that may exceed the TBT objective, as a share (1: not asked for)")
    max_nodes: int = option(8, "most nodes in all (8)")
    prefill_cost: float = option(1.0, "cost of a prefill node (1)")
    decode_cost: float = option(1.0, "cost of a node that decodes (1)")
    search: str = option("bisect", "bisect: more nodes never hurt; grid: try every size (bisect)")

    def __post_init__(self) -> None:
        for name in ("attainment", "tbt_violations"):
            require(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "in [0, 1]")
        require("max_nodes", self.max_nodes, 1 <= self.max_nodes <= 1000, "in [1, 1000]")
        for name in ("prefill_cost", "decode_cost"):
            require(name, getattr(self, name), 0 < getattr(self, name) < inf, "a finite number > 0")
        require("search", repr(self.search), self.search in ("bisect", "grid"), "one of bisect, grid")


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """One cluster under one policy; for `aggregated`, `decode` counts nodes of both phases."""

    policy: str
    prefill: int
    decode: int

    @property
    def nodes(self) -> str:
        """As in 2P2D."""
        if is_aggregated(self.policy):
            return f"{self.decode}B"
        return f"{self.prefill}P{self.decode}D" if self.prefill else f"{self.decode}D"

    def cost(self, plan: PlanConfig) -> float:
        """What the nodes cost."""
        return self.prefill * plan.prefill_cost + self.decode * plan.decode_cost


Judge = Callable[[Sequence[Point]], Sequence[bool]]
"""Says of each point whether it is good enough."""


def search(policies: Sequence[str], plan: PlanConfig, judge: Judge) -> Point | None:
    """The cheapest good point, among equals the first policy's; None when no size within `max_nodes` is good."""
    if plan.search == "grid":
        points = [point for policy in policies for point in all_points(policy, plan)]
        return _cheapest((point for point, good in zip(points, judge(points), strict=True) if good), plan)
    good: list[Point] = []
    asked = {policy: _walk(policy, plan, good) for policy in policies}
    waiting = {policy: next(walk, None) for policy, walk in asked.items()}
    while questions := {policy: point for policy, point in waiting.items() if point is not None}:
        answers = judge(list(questions.values()))
        # Every answer is known before the next question is chosen, so that the order of the policies decides ties alone.
        good += [point for point, is_good in zip(questions.values(), answers, strict=True) if is_good]
        for policy, is_good in zip(questions, answers, strict=True):
            waiting[policy] = _answered(asked[policy], is_good)
    return _cheapest(good, plan, policies)


def all_points(policy: str, plan: PlanConfig) -> Iterator[Point]:
    """Every size within `max_nodes`."""
    for decode in range(1, plan.max_nodes + 1):
        least, most = _prefill_range(policy, decode, plan)
        yield from (Point(policy, prefill, decode) for prefill in range(least, most + 1))


def _prefill_range(policy: str, decode: int, plan: PlanConfig) -> tuple[int, int]:
    """Prefill nodes to consider beside `decode` others: `never` needs one, `aggregated` has no use for any."""
    return (0, 0) if is_aggregated(policy) else (int(policy == "never"), plan.max_nodes - decode)


def _walk(policy: str, plan: PlanConfig, good: Sequence[Point]) -> Generator[Point, bool, None]:
    """Ask about sizes: for each number of decode nodes the fewest prefill nodes that do, by bisection.

    More decode nodes never need more prefill nodes, and what costs as much as a good point is no use, so the range
    shrinks as the walk goes on.
    """
    for decode in range(1, plan.max_nodes + 1):
        low, high = _prefill_range(policy, decode, plan)
        high = min(high, _affordable(decode, plan, good))
        if low > high or not (yield Point(policy, high, decode)):
            continue
        while low < high:
            middle = (low + high) // 2
            if (yield Point(policy, middle, decode)):
                high = middle
            else:
                low = middle + 1


def _affordable(decode: int, plan: PlanConfig, good: Sequence[Point]) -> int:
    """The most prefill nodes beside `decode` others that still cost less than every good point."""
    if not good:
        return plan.max_nodes
    budget = min(point.cost(plan) for point in good)
    prefill = int((budget - decode * plan.decode_cost) / plan.prefill_cost)
    return prefill - 1 if Point("", prefill, decode).cost(plan) >= budget else prefill


def _answered(walk: Generator[Point, bool, None], is_good: bool) -> Point | None:
    try:
        return walk.send(is_good)
    except StopIteration:
        return None


def _cheapest(good: Iterable[Point], plan: PlanConfig, policies: Sequence[str] = ()) -> Point | None:
    order = {policy: at for at, policy in enumerate(policies)}
    return min(good, key=lambda point: (point.cost(plan), order.get(point.policy, 0)), default=None)
