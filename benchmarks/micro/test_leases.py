"""CPU time that leases add to the scheduler's thread at 256 running requests.

    python -m pytest benchmarks/micro/test_leases.py -s
    KAIROS_BENCH_OUT=benchmarks/results/leases.json python -m pytest benchmarks/micro/test_leases.py -s

What is timed are the lease keeper's calls alone, in CPU seconds of that thread, with garbage collection off: `step`, both
of each step, while a lease is in force; `admit`, of a request that claims one; `grant`, of a report, ten of which go out a
second. Quantiles over all calls, and `least`, which a busy machine disturbs least. `load_average` is how busy it was.
"""

import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.micro.figures_file import show

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")

    from benchmarks.micro.test_scheduler import RUNNING, _answer
    from tests.engine.builder import build_scheduler, make_request, schedule_params, warm_decodes, write_model
    from tests.engine.leased import Leased

pytestmark = pytest.mark.vllm

CALLS = 600
STEP_LIMIT_US, GRANT_LIMIT_US = 20, 1000  # on a machine that is busy with other work


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Leased:
    model = write_model(tmp_path_factory.mktemp("model"))

    def build(**options: Any) -> Any:
        return build_scheduler(model, **options)

    made = Leased(build, connector=None, max_sequences=RUNNING + 32, blocks=60_000, token_budget=8192)
    warm_decodes(made.scheduler, *(f"D{index}" for index in range(RUNNING)), prompt=64, max_tokens=8000)
    made.beat()
    assert made.lease is not None
    return made


def _spent_us(call: Callable[[], Any]) -> float:
    started_s = time.thread_time()
    call()
    return (time.thread_time() - started_s) * 1e6


def _figures(spent_us: list[float]) -> dict[str, float]:
    quartiles = statistics.quantiles(spent_us, n=20)
    figures = {"least": min(spent_us), "median": statistics.median(spent_us), "p95": quartiles[-1]}
    return {name: round(value, 2) for name, value in figures.items()}


def _step(engine: Leased) -> float:
    """One step of decodes while a lease is in force, which a report renews every tenth step."""
    keeper, scheduler = engine.keeper, engine.scheduler
    scheduler._kairos_leases = None  # called here instead
    output = scheduler.schedule()
    spent_us = _spent_us(lambda: keeper.step_scheduled(output))
    engine.now_s += 0.01
    scheduler.update_from_output(output, _answer(scheduler, output))
    return spent_us + _spent_us(lambda: keeper.step_finished(output))


def _claiming(engine: Leased, number: int) -> Any:
    assert engine.lease is not None
    transfer = schedule_params(64)
    transfer["kairos"]["lease"] = {"id": engine.lease.lease_id, "router": "r1"}
    request = make_request(f"Q{number}", 10, max_tokens=2, transfer=transfer)
    engine.scheduler._kairos_planner.adopt(request)
    return request


def test_leases_cost_the_scheduler_little(engine: Leased) -> None:
    keeper = engine.keeper
    gc.collect()
    gc.disable()
    figures: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 1), "calls": CALLS}
    figures["grant"] = _figures([_spent_us(keeper.grant) for _ in range(CALLS // 4)])
    requests = [_claiming(engine, number) for number in range(CALLS // 4)]
    figures["admit"] = _figures([_spent_us(lambda request=request: keeper.admit(request)) for request in requests])  # type: ignore[misc]
    figures["step"] = _figures([_step(engine) for _ in range(CALLS)])
    gc.enable()
    show("leases", RUNNING, figures)
    assert figures["step"]["median"] <= STEP_LIMIT_US
    assert figures["grant"]["median"] <= GRANT_LIMIT_US
