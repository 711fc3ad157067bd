"""Every policy at every rate with every seed, one simulation each, in parallel processes."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.simulate.build import build_cluster, build_objectives, build_workload
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import Figures, figures_of
from vllm_kairos.simulate.request_rows import request_rows

_ENDED_AT_ONCE = 200  # requests between two reports of progress
_LOOK_EVERY_S = 0.2


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


Progress = Callable[[int], None]
"""Told how many more requests have ended, in all simulations together."""


def grid(config: SimulateConfig, *, with_requests: bool = False) -> tuple[Cell, ...]:
    """The cells of `config`, policies innermost so that a comparison is complete early."""
    sweep = config.sweep
    return tuple(
        Cell(config=config, policy=policy, rate_rps=rate, seed=seed, with_requests=with_requests)
        for seed in sweep.seeds
        for rate in sweep.rates or (None,)
        for policy in sweep.policies
    )


def simulate_cell(cell: Cell, progress: Progress | None = None) -> Outcome:
    """Run one cell."""
    cluster = build_cluster(cell.config)
    built = build_policy(cell.policy, cluster)
    workload = build_workload(cell.config.workload, cell.rate_rps, cell.seed)
    return Simulation(
        cluster,
        workload,
        built.policy,
        objectives=build_objectives(cell.config),
        seed=cell.seed,
        truth=built.truth,
        progress=None if progress is None else _batched(progress, len(workload.requests)),
    ).run()


def run_cell(cell: Cell, progress: Progress | None = None) -> CellResult:
    """Run one cell and keep its figures."""
    outcome = simulate_cell(cell, progress)
    figures = figures_of(outcome, build_objectives(cell.config))
    rows = tuple(request_rows(outcome)) if cell.with_requests else ()
    return CellResult(policy=cell.policy, rate_rps=cell.rate_rps, seed=cell.seed, figures=figures, rows=rows)


def _batched(progress: Progress, total: int) -> Callable[[int], None]:
    def ended(count: int) -> None:
        if count % _ENDED_AT_ONCE == 0:
            progress(_ENDED_AT_ONCE)
        elif count == total:
            progress(total % _ENDED_AT_ONCE)

    return ended


def default_workers() -> int:
    """As many as there are CPUs for this process."""
    return len(os.sched_getaffinity(0))


def run_cells(cells: Sequence[Cell], *, workers: int, progress: Progress | None = None) -> list[CellResult]:
    """Results in the order of `cells`, whatever the number of processes. The first error stops all and is raised."""
    tell = progress or (lambda _: None)
    if workers <= 1 or len(cells) <= 1:
        return [run_cell(cell, tell) for cell in cells]
    with _stopping_on_sigterm():
        return _run_in_processes(cells, min(workers, len(cells)), tell)


def _run_in_processes(cells: Sequence[Cell], workers: int, tell: Progress) -> list[CellResult]:
    context = multiprocessing.get_context("spawn")
    ended, stop = context.Value("q", 0), context.Event()
    with ProcessPoolExecutor(workers, context, _begin_worker, (ended, stop)) as pool:
        futures = [pool.submit(_run_in_worker, cell) for cell in cells]
        try:
            _watch(futures, ended, tell)
            return [future.result() for future in futures]
        except BrokenProcessPool:
            raise SimulationError("workers must live until their simulation ends, got one that died (memory?)") from None
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _watch(futures: Sequence[Future[CellResult]], ended: Any, tell: Progress) -> None:
    """Report progress until all are done; raise the first error as soon as it is there."""
    told, pending = 0, set(futures)
    while pending:
        done, pending = wait(pending, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
        for future in done:
            future.result()
        tell(ended.value - told)
        told = ended.value


@contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does, so that its processes end too."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Stopped(Exception):
    """The parent gave up; nobody reads this worker's result."""


_shared: dict[str, Any] = {}


def _begin_worker(ended: Any, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and tells us
    _shared.update(ended=ended, stop=stop)


def _run_in_worker(cell: Cell) -> CellResult:
    return run_cell(cell, _count_ended)


def _count_ended(more: int) -> None:
    if _shared["stop"].is_set():
        raise _Stopped
    with _shared["ended"].get_lock():
        _shared["ended"].value += more
