"""Added time per engine step of KairosScheduler over vLLM's own scheduler, at 256 running requests.

    python -m pytest benchmarks/micro/test_scheduler.py -s
    KAIROS_BENCH_OUT=benchmarks/results/scheduler-step.json python -m pytest benchmarks/micro/test_scheduler.py -s

Both schedulers live in one process and take turns, a few steps each, so that whatever else the
machine does hits both. Times are CPU seconds of the scheduler's thread, with garbage collection off.
Each turn counts with its fastest step, which a busy machine disturbs least; the figure is the median
over the turns of ours less stock's. `noise` compares stock with stock. Scenes:
`decode` is 256 decodes and nothing else; `decode_reported` adds kairos settings and the node-state
publisher at its default period; `deflected` adds a deflected prefill (ours: under a chunk schedule;
stock: the same chunks by its long-prefill threshold).
"""

import gc
import os
import statistics
import time
import warnings
from typing import Any

import pytest

from benchmarks.micro.figures_file import show

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm")
    from vllm.v1.outputs import ModelRunnerOutput

    from tests.engine.builder import build_scheduler, make_request, schedule_params, warm_decodes, write_model

pytestmark = pytest.mark.vllm

RUNNING = 256
TURNS = 200
STEPS_PER_TURN = 12
LIMIT_S = 50e-6
CHUNK_TOKENS = 64
PROMPT_TOKENS = 15_000
# The default chunk is so large that both schedulers take in all prompts in one step: decodes in lockstep
# reach the ends of their KV blocks together, and steps in which they do cost more.
REPORTING = {"role": "decode", "default_chunk_tokens": 1_000_000, "state_endpoint": "ipc:///tmp/kairos-bench-{}"}


def _scheduler(model: str, scheduler_class: Any, **options: Any) -> Any:
    return build_scheduler(
        model, scheduler_class=scheduler_class, async_scheduling=True, max_sequences=RUNNING + 8, blocks=60_000, **options
    )


def _add_prefill(scheduler: Any, index: int, planned: bool) -> None:
    chi = RUNNING + CHUNK_TOKENS
    transfer = schedule_params(chi) if planned else None
    scheduler.add_request(make_request(f"P{index}", PROMPT_TOKENS, transfer=transfer, max_tokens=1))


def _timed_step(scheduler: Any) -> float:
    """CPU seconds that one step spends in the scheduler: schedule() and update_from_output()."""
    started_s = time.thread_time()
    output = scheduler.schedule()
    spent_s = time.thread_time() - started_s
    answer = _answer(scheduler, output)
    started_s = time.thread_time()
    scheduler.update_from_output(output, answer)
    return spent_s + time.thread_time() - started_s


def _answer(scheduler: Any, output: Any) -> Any:
    """The model runner's answer, without run_model's token that depends on everything before it."""
    ids = list(output.num_scheduled_tokens)
    sampled = [[] if scheduler.requests[name].is_prefill_chunk else [7] for name in ids]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: index for index, name in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def _compare(stock: Any, ours: Any, *, prefill: bool = False) -> dict[str, Any]:
    schedulers = {"stock": stock, "ours": ours}
    for scheduler in schedulers.values():
        warm_decodes(scheduler, *(f"D{index}" for index in range(RUNNING)), prompt=64, max_tokens=8000)
    times: dict[str, list[float]] = {"stock": [], "ours": []}
    gc.collect()
    gc.disable()
    for turn in range(TURNS):
        for name in ("stock", "ours") if turn % 2 else ("ours", "stock"):
            scheduler = schedulers[name]
            if prefill and not any(request.is_prefill_chunk for request in scheduler.running):
                _add_prefill(scheduler, turn, name == "ours")
            times[name].append(min(_timed_step(scheduler) for _ in range(STEPS_PER_TURN)))
    gc.enable()
    stock.shutdown()
    ours.shutdown()
    return _summary(times)


def _summary(times: dict[str, list[float]]) -> dict[str, Any]:
    added = [ours - stock for ours, stock in zip(times["ours"], times["stock"], strict=True)]
    quantiles = {name: statistics.quantiles(values, n=100) for name, values in {**times, "added": added}.items()}
    return {"turns": TURNS, "steps_per_turn": STEPS_PER_TURN} | {
        f"{name}_p{p}_us": round(q[p - 1] * 1e6, 1) for name, q in quantiles.items() for p in (25, 50, 75, 95)
    }


def _stock_class() -> Any:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    return AsyncScheduler


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def results() -> Any:
    """Collects the scenes and writes them where KAIROS_BENCH_OUT says."""
    collected: dict[str, Any] = {}
    yield collected
    show("scheduler step", RUNNING, collected)


def _kairos_class() -> Any:
    from vllm_kairos import KairosScheduler

    return KairosScheduler


def test_noise(model: str, results: dict[str, Any]) -> None:
    results["noise"] = _compare(_scheduler(model, _stock_class()), _scheduler(model, _stock_class()))


def test_decodes_only(model: str, results: dict[str, Any]) -> None:
    results["decode"] = _compare(_scheduler(model, _stock_class()), _scheduler(model, _kairos_class()))
    assert results["decode"]["added_p50_us"] < LIMIT_S * 1e6


def test_decodes_with_publisher(model: str, results: dict[str, Any]) -> None:
    kairos = {**REPORTING, "state_endpoint": REPORTING["state_endpoint"].format(os.getpid())}
    ours = _scheduler(model, _kairos_class(), kairos=kairos)
    results["decode_reported"] = _compare(_scheduler(model, _stock_class()), ours)
    assert results["decode_reported"]["added_p50_us"] < LIMIT_S * 1e6


def test_deflected_prefill(model: str, results: dict[str, Any]) -> None:
    stock = _scheduler(model, _stock_class(), long_prefill_threshold=CHUNK_TOKENS)
    results["deflected"] = _compare(stock, _scheduler(model, _kairos_class()), prefill=True)
    assert results["deflected"]["added_p50_us"] < LIMIT_S * 1e6
