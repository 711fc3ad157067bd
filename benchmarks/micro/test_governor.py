"""Added time per engine step of the deadline governor at 256 running requests.

    python -m pytest benchmarks/micro/test_governor.py -s
    KAIROS_BENCH_OUT=benchmarks/results/governor-step.json python -m pytest benchmarks/micro/test_governor.py -s

Three schedulers live in one process and take turns, a few steps each, so that whatever else the machine does hits all
of them: vLLM's own, KairosScheduler with a fixed chunk, and KairosScheduler with a governor. Times are CPU seconds of the
scheduler's thread in schedule() and update_from_output(), with garbage collection off; the governor's clock is moved by
what its profile predicts. `median` and `fastest` take each turn with its median and its fastest step; `over_` is the
median over the turns of the governed scheduler's less another's, with quartiles. `noise` compares two that are alike. `own`
then times the governor's calls alone, and the planner's that ask it, in further steps: quantiles over all, and the least.
Scenes: `decode` is 256 decodes and nothing else; in `prefill` a long prompt is computed beside them in chunks, those of
the other two about as large as the governor's; `tpot` is that under a TPOT objective; in `churn` one request ends and
one joins in every step.
"""

import gc
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from benchmarks.micro.figures_file import show

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")

    from benchmarks.micro.test_scheduler import PROMPT_TOKENS, RUNNING, _answer, _stock_class
    from tests.engine.builder import build_scheduler, make_request, warm_decodes, write_model
    from tests.engine.governed import PROFILE, TRUTH
    from vllm_kairos.engine import compat_steps

pytestmark = pytest.mark.vllm

TURNS = int(os.environ.get("KAIROS_BENCH_TURNS", "150"))
STEPS_PER_TURN = 12
LIMIT_US = 20  # the target, which steps of decodes alone meet
PREFILL_LIMIT_US = 100  # those with prefill do not meet it
CHUNK_TOKENS = 250  # what the objectives leave, roughly
TBT = {"tbt_slo_s": 0.045}
TPOT = {"tpot_slo_s": 0.045}


class Timed:
    """A scheduler whose steps are timed; those of a governed one take, by its clock, what its profile predicts."""

    def __init__(self, scheduler: Any, before: Callable[[Any], None]) -> None:
        self.scheduler, self._before = scheduler, before
        self._now_s = time.perf_counter()
        self._governor = getattr(scheduler, "_kairos_governor", None)
        if self._governor is not None:
            self._governor._clock = lambda: self._now_s
        self.own_us = 0.0

    def step_us(self) -> float:
        """Run one step; the CPU time that it took."""
        scheduler, self.own_us = self.scheduler, 0.0
        self._before(scheduler)
        started_s = time.thread_time()
        output = scheduler.schedule()
        spent_s = time.thread_time() - started_s
        answer = _answer(scheduler, output)
        if self._governor is not None:
            load = compat_steps.read_load(scheduler, output, output.num_scheduled_tokens.keys())
            self._now_s += TRUTH.packed_step_s(load.running_decodes, load.kv_tokens, load.chunks)
        started_s = time.thread_time()
        scheduler.update_from_output(output, answer)
        return (spent_s + time.thread_time() - started_s) * 1e6

    def time_own_calls(self) -> None:
        """From now on `own_us` is the CPU time of the governor's calls in the last step."""
        planner = self.scheduler._kairos_planner
        calls = [(self._governor, name) for name in ("begin", "bound", "step_scheduled", "step_finished")]
        for owner, name in [*calls, (planner, "_first_in_time"), (planner, "_in_time")]:
            setattr(owner, name, self._timed(getattr(owner, name)))

    # The clock is read once inside each timed span: a quarter of a microsecond each.
    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started_s = time.thread_time()
            result = call(*args)
            self.own_us += (time.thread_time() - started_s) * 1e6
            return result

        return timed


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """Collects the scenes and writes them where KAIROS_BENCH_OUT says."""
    collected: dict[str, Any] = {}
    yield collected
    show("governor", RUNNING, collected)


def _schedulers(model: str, objective: dict[str, float], before: Callable[[Any], None]) -> dict[str, Timed]:
    def build(**options: Any) -> Timed:
        scheduler = build_scheduler(model, async_scheduling=True, max_sequences=RUNNING + 8, blocks=60_000, **options)
        return Timed(scheduler, before)

    return {
        "stock": build(scheduler_class=_stock_class(), long_prefill_threshold=CHUNK_TOKENS),
        "fixed": build(kairos={"default_chunk_tokens": RUNNING + CHUNK_TOKENS}),
        "governed": build(kairos={"governor": {"profile": PROFILE, **objective}}),
    }


def _warmed(schedulers: dict[str, Timed]) -> dict[str, Timed]:
    for each in schedulers.values():
        warm_decodes(each.scheduler, *(f"D{index}" for index in range(RUNNING)), prompt=64, max_tokens=8000)
    return schedulers


def _measure(schedulers: dict[str, Timed]) -> dict[str, Any]:
    gc.collect()
    gc.disable()
    turns = [_turn(schedulers, number) for number in range(TURNS)]
    figures = {"load_average": round(os.getloadavg()[0], 1), "turns": TURNS, "steps_per_turn": STEPS_PER_TURN}
    figures |= {kind: _compared(turns, pick) for kind, pick in (("median", statistics.median), ("fastest", min))}
    if "governed" in schedulers:
        figures["own"] = _own(schedulers["governed"])
    gc.enable()
    for each in schedulers.values():
        each.scheduler.shutdown()
    return figures


def _turn(schedulers: dict[str, Timed], number: int) -> dict[str, list[float]]:
    names = list(schedulers)
    first = number % len(names)
    return {name: [schedulers[name].step_us() for _ in range(STEPS_PER_TURN)] for name in names[first:] + names[:first]}


def _compared(turns: list[dict[str, list[float]]], pick: Callable[[list[float]], float]) -> dict[str, Any]:
    picked = {name: [pick(times[name]) for times in turns] for name in turns[0]}
    figures: dict[str, Any] = {f"{name}_us": round(statistics.median(values), 1) for name, values in picked.items()}
    last = "governed" if "governed" in picked else "again"
    for name in picked.keys() - {last}:
        added = [mine - its for mine, its in zip(picked[last], picked[name], strict=True)]
        figures |= _quantiles(f"over_{name}", added, (25, 50, 75))
    return dict(sorted(figures.items()))


def _own(governed: Timed) -> dict[str, float]:
    governed.time_own_calls()
    spent = []
    for _ in range(TURNS * STEPS_PER_TURN):
        governed.step_us()
        spent.append(governed.own_us)
    return {"least_us": round(min(spent), 1)} | _quantiles("every", spent, (25, 50, 75, 95))


def _quantiles(name: str, values: list[float], percents: tuple[int, ...]) -> dict[str, float]:
    quantiles = statistics.quantiles(values, n=100)
    return {f"{name}_p{percent}_us": round(quantiles[percent - 1], 1) for percent in percents}


def _check(results: dict[str, Any], scene: str, schedulers: dict[str, Timed], limit_us: float = PREFILL_LIMIT_US) -> None:
    results[scene] = figures = _measure(schedulers)
    assert figures["own"]["every_p50_us"] < limit_us


def _nothing(scheduler: Any) -> None:
    """No request joins."""


def _prefills() -> Callable[[Any], None]:
    number = count()

    def add(scheduler: Any) -> None:
        if not any(request.is_prefill_chunk for request in scheduler.running):
            scheduler.add_request(make_request(f"P{next(number)}", PROMPT_TOKENS, max_tokens=1))

    return add


def test_noise(model: str, results: dict[str, Any]) -> None:
    alike = {"fixed": _schedulers(model, TBT, _nothing)["fixed"], "again": _schedulers(model, TBT, _nothing)["fixed"]}
    results["noise"] = _measure(_warmed(alike))


def test_decodes_only(model: str, results: dict[str, Any]) -> None:
    _check(results, "decode", _warmed(_schedulers(model, TBT, _nothing)), LIMIT_US)


def test_long_prefill(model: str, results: dict[str, Any]) -> None:
    _check(results, "prefill", _warmed(_schedulers(model, TBT, _prefills())))


def test_long_prefill_under_tpot(model: str, results: dict[str, Any]) -> None:
    _check(results, "tpot", _warmed(_schedulers(model, TPOT, _prefills())))


def test_churn(model: str, results: dict[str, Any]) -> None:
    number = count()

    def join(scheduler: Any) -> None:
        scheduler.add_request(make_request(f"C{next(number)}", 16, max_tokens=RUNNING))

    schedulers = _schedulers(model, TBT, join)
    for each in schedulers.values():
        for _ in range(RUNNING + 8):
            each.step_us()
    _check(results, "churn", schedulers)
