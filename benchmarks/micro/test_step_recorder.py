"""CPU time that recording adds to an engine step of KairosScheduler at 256 running requests.

    python -m pytest benchmarks/micro/test_step_recorder.py -s
    KAIROS_BENCH_OUT=benchmarks/results/step-recorder.json python -m pytest benchmarks/micro/test_step_recorder.py -s

What is timed are the recorder's two calls in each step, in CPU seconds of the scheduler's thread, with garbage
collection off; without a recorder, both are one comparison with None. Steps are predicted with a shipped profile and
written to a file.
`least` is the cheapest step of all, which a busy machine disturbs least; `fastest` are quantiles over turns of the
fastest of 12 steps; `every` are over all steps. `load_average` is how busy the machine was; all other figures grow with it.
Steps follow each other at once here, so that the thread that works them out competes with the scheduler's far more
than on a server. Predictions, causes, counts and lines are that thread's cost, not part of these figures.
Scenes: `decode` is 256 decodes and nothing else; `deflected` adds a deflected prefill to each step; in `churn` one
request ends and one joins in every step.
"""

import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.micro.figures_file import show

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")

    from benchmarks.micro.test_scheduler import CHUNK_TOKENS, PROMPT_TOKENS, RUNNING, STEPS_PER_TURN, _timed_step
    from tests.engine.builder import build_scheduler, make_request, schedule_params, warm_decodes, write_model

pytestmark = pytest.mark.vllm

TURNS = 60


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """Collects the scenes and writes them where KAIROS_BENCH_OUT says."""
    collected: dict[str, Any] = {}
    yield collected
    show("step recorder", RUNNING, collected)


class Timed:
    """A recorded scheduler; `spent_s` is the CPU time of the recorder's calls since it was last taken."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.spent_s = scheduler, 0.0
        recorder = scheduler._kairos_recorder
        for name in ("step_scheduled", "step_finished"):
            setattr(recorder, name, self._timed(getattr(recorder, name)))

    def step_s(self) -> float:
        """Run one step; what the recorder spent on it."""
        self.spent_s = 0.0
        _timed_step(self.scheduler)
        return self.spent_s

    # The clock is read once inside each of the two timed spans, which adds under a microsecond to a step.
    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*args: Any) -> None:
            started_s = time.thread_time()
            call(*args)
            self.spent_s += time.thread_time() - started_s

        return timed


@pytest.fixture
def timed(model: str, tmp_path: Path) -> Iterator[Timed]:
    record = {"profile": "a100-llama3-8b", "file": str(tmp_path / "steps"), "totals_file": str(tmp_path / "totals")}
    scheduler = build_scheduler(
        model, async_scheduling=True, max_sequences=RUNNING + 8, blocks=60_000, kairos={"step_record": record}
    )
    yield Timed(scheduler)
    scheduler.shutdown()


def _measure(timed: Timed, before: Callable[[Any], None]) -> dict[str, Any]:
    every, fastest = [], []
    gc.collect()
    gc.disable()
    for _ in range(TURNS):
        turn = []
        for _ in range(STEPS_PER_TURN):
            before(timed.scheduler)
            turn.append(timed.step_s())
        every += turn
        fastest.append(min(turn))
    gc.enable()
    quantiles = {name: statistics.quantiles(each, n=100) for name, each in (("fastest", fastest), ("every", every))}
    measured = {"load_average": round(os.getloadavg()[0], 1), "turns": TURNS, "steps_per_turn": STEPS_PER_TURN}
    return (
        measured
        | {"least_us": round(min(every) * 1e6, 1)}
        | {f"{name}_p{p}_us": round(values[p - 1] * 1e6, 1) for name, values in quantiles.items() for p in (25, 50, 75, 95)}
    )


def _warm(timed: Timed) -> None:
    warm_decodes(timed.scheduler, *(f"D{index}" for index in range(RUNNING)), prompt=64, max_tokens=8000)


def test_decodes_only(timed: Timed, results: dict[str, Any]) -> None:
    _warm(timed)
    results["decode"] = _measure(timed, lambda scheduler: None)


def test_deflected_prefill(timed: Timed, results: dict[str, Any]) -> None:
    _warm(timed)
    number = count()

    def add(scheduler: Any) -> None:
        if not any(request.is_prefill_chunk for request in scheduler.running):
            transfer = schedule_params(RUNNING + CHUNK_TOKENS)
            scheduler.add_request(make_request(f"P{next(number)}", PROMPT_TOKENS, transfer=transfer, max_tokens=1))

    results["deflected"] = _measure(timed, add)


def test_churn(timed: Timed, results: dict[str, Any]) -> None:
    number = count()

    def add(scheduler: Any) -> None:
        scheduler.add_request(make_request(f"C{next(number)}", 16, max_tokens=RUNNING))

    for _ in range(RUNNING + 8):
        add(timed.scheduler)
        timed.step_s()
    results["churn"] = _measure(timed, add)
