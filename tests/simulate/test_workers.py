"""Processes give results in order, pass errors on and stop when told."""

import time

import pytest

from tests.simulate.runs import cell
from vllm_kairos.errors import SimulationError
from vllm_kairos.simulate.sweep import run_cells
from vllm_kairos.simulate.workers import worker_pool

GRID = [cell(policy=policy, seed=seed) for seed in (0, 1) for policy in ("never", "kairos")]


def test_results_do_not_depend_on_the_number_of_processes():
    ended = []
    alone = run_cells(GRID, workers=1, tell=ended.append)
    assert [(one.seed, one.policy) for one in alone] == [(0, "never"), (0, "kairos"), (1, "never"), (1, "kairos")]
    assert sum(ended) == sum(one.figures.requests for one in alone)
    ended.clear()
    assert run_cells(GRID, workers=2, tell=ended.append) == alone
    assert sum(ended) == sum(one.figures.requests for one in alone)


def refuse_odd(item, tell):
    tell(1)
    if item % 2:
        raise SimulationError(f"item must be even, got {item}")
    return item


def for_ever(item, tell):
    """End only when the parent says so, which `tell` passes on."""
    while True:
        tell(1)
        time.sleep(0.01)


def interrupt(more):
    if more:
        raise KeyboardInterrupt


def test_an_error_and_an_interrupt_both_end_the_pool():
    with pytest.raises(SimulationError, match="item must be even, got 3"), worker_pool(2) as run:
        run(refuse_odd, [0, 2, 3, 4], lambda more: None)
    with pytest.raises(KeyboardInterrupt), worker_pool(2) as run:
        run(for_ever, [0, 1], interrupt)
