"""Every policy at every rate with every seed, one simulation each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from vllm_kairos.core.policies.registry import POLICIES_SPENDING_LEASES
from vllm_kairos.errors import ConfigError
from vllm_kairos.sim.aggregated import budget_of, is_aggregated
from vllm_kairos.sim.policies import BuiltPolicy, build_policy
from vllm_kairos.sim.simulator import Simulation
from vllm_kairos.simulate.build import build_cluster, build_objectives, build_workload
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import Figures, figures_of
from vllm_kairos.simulate.request_rows import request_rows
from vllm_kairos.simulate.sections import GovernorConfig, LeasesConfig, require
from vllm_kairos.simulate.workers import Progress, worker_pool
from vllm_kairos.workload.request import Workload

_ENDED_AT_ONCE = 200  # requests between two reports of progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation of a grid; `config` may differ from cell to cell. No rate: the workload's own."""

    config: SimulateConfig
    policy: str
    rate_rps: float | None
    seed: int
    with_requests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """A cell's figures, and on demand a row for each request."""

    policy: str
    rate_rps: float | None
    seed: int
    figures: Figures
    rows: tuple[tuple[Any, ...], ...] = ()


def _ignore(_more: int) -> None:
    """Nobody watches."""


def grid(config: SimulateConfig, *, with_requests: bool = False) -> tuple[Cell, ...]:
    """The cells of `config`, policies innermost so that a comparison is complete early."""
    sweep = config.sweep
    return tuple(
        Cell(config=config, policy=policy, rate_rps=rate, seed=seed, with_requests=with_requests)
        for seed in sweep.seeds
        for rate in sweep.rates or (None,)
        for policy in sweep.policies
    )


def check(config: SimulateConfig) -> Workload:
    """Find every fault of the input before anything long starts; return the first cell's load."""
    cluster = build_cluster(config)
    policies = {spec: build_policy(spec, cluster) for spec in config.sweep.policies}
    for spec, built in policies.items():
        _check_routers(config.cluster.routers, spec, built)
    if config.governor.mode is None:
        _refuse_settings("governor", config.governor, "left out where no mode turns the governor on")
    if all(built.leases is None for built in policies.values()):
        spenders = ", ".join(sorted(POLICIES_SPENDING_LEASES))
        _refuse_settings("leases", config.leases, f"left out where no policy spends leases, as {spenders} does")
    first_rate = next(iter(config.sweep.rates), None)
    return build_workload(config.workload, first_rate, config.sweep.seeds[0])


def _check_routers(routers: int, policy: str, built: BuiltPolicy) -> None:
    if routers > 1 and built.mover is not None:
        raise ConfigError(f"cluster: routers must be 1 under {policy!r}, which moves decodes, got {routers}")


def _refuse_settings(name: str, section: GovernorConfig | LeasesConfig, rule: str) -> None:
    """A section that would have no effect holds nothing but defaults."""
    for item in fields(section):
        value = getattr(section, item.name)
        require(f"{name}: {item.name}", value, value == item.default, rule)


def cell_workload(cell: Cell) -> Workload:
    """One cell's load."""
    return build_workload(cell.config.workload, cell.rate_rps, cell.seed)


def make_simulation(cell: Cell, workload: Workload, progress: Callable[[int], None] | None = None) -> Simulation:
    """Build one cell's simulation; `progress` is told how many of its requests have ended."""
    cluster = build_cluster(_engines_of(cell))
    built = build_policy(cell.policy, cluster)
    return Simulation(
        cluster,
        workload,
        built.policy,
        objectives=build_objectives(cell.config),
        seed=cell.seed,
        truth=built.truth,
        mover=built.mover,
        leases=built.leases,
        routers=cell.config.cluster.routers,
        progress=progress,
    )


def _engines_of(cell: Cell) -> SimulateConfig:
    """Under `aggregated` a token budget bounds prefill, and a governor if there is one; with a BUDGET it is stock vLLM."""
    config = cell.config
    if not is_aggregated(cell.policy):
        return config
    config = replace(config, cluster=replace(config.cluster, default_chunk_tokens=0))
    budget = budget_of(cell.policy)
    if budget is None:
        return config
    cluster = replace(config.cluster, decode_budget_tokens=budget, max_num_seqs=_sequences_within(budget, config))
    return replace(config, cluster=cluster, governor=GovernorConfig())


def _sequences_within(budget: int, config: SimulateConfig) -> int | None:
    """vLLM takes no more running requests than tokens a step."""
    chosen = config.cluster.max_num_seqs
    return None if chosen is None else min(chosen, budget)


def run_cell(cell: Cell, tell: Progress) -> CellResult:
    """Run one cell and keep its figures."""
    outcome = make_simulation(cell, cell_workload(cell), in_batches(tell)).run()
    tell(len(outcome.requests) % _ENDED_AT_ONCE)
    figures = figures_of(outcome, build_objectives(cell.config))
    rows = tuple(request_rows(outcome)) if cell.with_requests else ()
    return CellResult(policy=cell.policy, rate_rps=cell.rate_rps, seed=cell.seed, figures=figures, rows=rows)


def in_batches(tell: Progress) -> Callable[[int], None]:
    """Take every count of ended requests and pass on whole batches of them."""

    def ended(count: int) -> None:
        if count % _ENDED_AT_ONCE == 0:
            tell(_ENDED_AT_ONCE)

    return ended


def run_cells(cells: Sequence[Cell], *, workers: int, tell: Progress = _ignore) -> list[CellResult]:
    """Figures of every cell, in the order of `cells`; see `worker_pool`."""
    with worker_pool(min(workers, len(cells))) as run:
        return run(run_cell, cells, tell)
