"""Parallel processes for simulations: results in order, one line per error, Ctrl-C stops all."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol, TypeVar

from vllm_kairos.errors import SimulationError

_LOOK_EVERY_S = 0.2
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

Progress = Callable[[int], None]
"""Told how many more requests have ended, in all simulations together."""


class Run(Protocol):
    """Runs a task for every item; `task` is a function of a module, so that processes find it."""

    def __call__(self, task: Callable[[_Item, Progress], _Result], items: Sequence[_Item], tell: Progress) -> list[_Result]:
        """Results in the order of `items`. The first error stops all and is raised."""


def default_workers() -> int:
    """As many as there are CPUs for this process."""
    return len(os.sched_getaffinity(0))


@contextmanager
def worker_pool(workers: int) -> Iterator[Run]:
    """What runs tasks in `workers` processes, or in this one when that is 1.

    Processes are spawned: a script that calls this guards its main part with `if __name__ == "__main__"`.
    Raises SimulationError when a process dies.
    """
    if workers <= 1:
        yield _run_here
        return
    context = multiprocessing.get_context("spawn")
    ended, stop = context.Value("q", 0), context.Event()
    with _stopping_on_sigterm(), ProcessPoolExecutor(workers, context, _begin_worker, (ended, stop)) as pool:
        try:
            yield _PoolRun(pool, ended)
        except BrokenProcessPool:
            raise SimulationError("workers must live until their simulation ends, got one that died (memory?)") from None
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)


def _run_here(task: Callable[[_Item, Progress], _Result], items: Sequence[_Item], tell: Progress) -> list[_Result]:
    return [task(item, tell) for item in items]


class _PoolRun:
    """Runs tasks in a pool whose workers count ended requests in `ended`."""

    def __init__(self, pool: ProcessPoolExecutor, ended: Any) -> None:
        self._pool, self._ended, self._told = pool, ended, 0

    def __call__(self, task: Callable[[_Item, Progress], _Result], items: Sequence[_Item], tell: Progress) -> list[_Result]:
        with _new_processes_deaf_to_ctrl_c():
            futures = [self._pool.submit(_run_in_worker, task, item) for item in items]
        pending: set[Future[_Result]] = set(futures)
        while pending:
            done, pending = wait(pending, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
            tell(self._ended.value - self._told)
            self._told = self._ended.value
        return [future.result() for future in futures]


@contextmanager
def _new_processes_deaf_to_ctrl_c() -> Iterator[None]:
    """They inherit what is blocked, from before their first line on: the parent hears Ctrl-C and tells them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
    _shared.update(ended=ended, stop=stop)


def _run_in_worker(task: Callable[[_Item, Progress], _Result], item: _Item) -> _Result:
    _count_ended(0)  # what was handed out before the stop does not even begin
    return task(item, _count_ended)


def _count_ended(more: int) -> None:
    if _shared["stop"].is_set():
        raise _Stopped
    with _shared["ended"].get_lock():
        _shared["ended"].value += more
