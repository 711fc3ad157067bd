"""How long one decision takes (one core, fixed seeds).

    python -m pytest benchmarks/micro/test_decision.py -s
    KAIROS_BENCH_OUT=benchmarks/results/decision.json python -m pytest benchmarks/micro/test_decision.py -s

The garbage collector is set as the router sets it while it serves. Prints p50 and p99 per cluster and
prompt, in wall and in thread CPU time: on a machine that others use too, the first has their time
slices in it. Asserts nothing about speed.
"""

import gc
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environment import describe_machine
from vllm_kairos.core.events import Dispatched, Ended, FirstToken, NodeAdded, NodeReported
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.core.policies import make_policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.core.view import ClusterView

A100 = LinearStepModel(
    prefill=PrefillCost(fixed_s=6.76e-3, per_token_s=6.38e-5, per_done_token_s=1e-8, per_attention_work_s=3.46e-9),
    decode=DecodeCost(fixed_s=10.85e-3, per_decode_s=4.36e-5, per_kv_token_s=7.96e-8),
    extra=PrefillCost(fixed_s=1e-3, per_token_s=6.0e-5, per_done_token_s=1e-8, per_attention_work_s=3.46e-9),
)
SIZES = [(2, 2), (8, 32), (64, 256)]
PROMPTS = [512, 4096, 32_768]
ROUNDS = 2000
ROUTER_GC_THRESHOLD = (50_000, 20, 50)  # kairos_router/serve.py


def _prefill(name: str, rng: random.Random) -> NodeState:
    queue = tuple(rng.randint(100, 8000) for _ in range(rng.randint(0, 16)))
    return NodeState(
        node_id=name,
        role=Role.PREFILL,
        queued_prompt_tokens=queue,
        queued_prefill_tokens=sum(queue),
        token_budget_tokens=8192,
        total_kv_blocks=27_000,
        free_kv_blocks=20_000,
    )


def _decode(name: str, rng: random.Random, prefills: int) -> NodeState:
    decodes = rng.randint(1, 128)
    kv_tokens = decodes * rng.randint(200, 3000)
    return NodeState(
        node_id=name,
        role=Role.DECODE,
        running_decodes=decodes,
        kv_tokens=kv_tokens,
        total_kv_blocks=27_000,
        free_kv_blocks=27_000 - kv_tokens // 16,
        kv_bytes_per_token=131_072,
        links=tuple(LinkState(prefill_node=f"p{at}", bandwidth_bytes_per_s=rng.uniform(5e9, 2e10)) for at in range(prefills)),
    )


def _cluster(prefills: int, decodes: int, seed: int) -> tuple[NodeState, ...]:
    rng = random.Random(seed)
    return (
        *(_prefill(f"p{at}", rng) for at in range(prefills)),
        *(_decode(f"d{at}", rng, prefills) for at in range(decodes)),
    )


def _request(prompt: int, number: int) -> RequestShape:
    return RequestShape(request_id=str(number), prompt_tokens=prompt + number % 61, max_output_tokens=200)


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """Collects the figures and writes them where KAIROS_BENCH_OUT says."""
    collected: dict[str, Any] = {}
    yield collected
    if out := os.environ.get("KAIROS_BENCH_OUT"):
        document = {"benchmark": "decision", "unit": "us", "environment": describe_machine(), **collected}
        Path(out).write_text(json.dumps(document, indent=2) + "\n")


def _measure(one: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Percentiles of `ROUNDS` single calls, in microseconds."""
    usual = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*ROUTER_GC_THRESHOLD)
    wall, cpu = [], []
    for _ in range(ROUNDS):
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        one()
        cpu.append(time.thread_time() - cpu_s)
        wall.append(time.perf_counter() - wall_s)
    gc.set_threshold(*usual)
    gc.unfreeze()
    return {label: _percentiles(sorted(seconds)) for label, seconds in (("wall", wall), ("cpu", cpu))}


def _percentiles(ordered_s: list[float]) -> dict[str, float]:
    return {f"p{percent}": round(ordered_s[len(ordered_s) * percent // 100] * 1e6, 1) for percent in (50, 99)}


def _report(name: str, one: Callable[[], object], results: dict[str, Any]) -> None:
    results[name] = _measure(one)
    print(f"\n{name:<32} {json.dumps(results[name])}")  # noqa: T201


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize(("prefills", "decodes"), SIZES, ids=lambda size: str(size))
def test_decide(benchmark, results, prefills, decodes, prompt):
    model = A100
    policy = make_policy("kairos", prefill_model=model, decode_model=model, settings=DecisionSettings())
    inputs = cycle([(_cluster(prefills, decodes, seed), _request(prompt, seed)) for seed in range(20)])

    def one() -> object:
        nodes, request = next(inputs)
        return policy.decide(request, nodes, 1.0)

    _report(f"decide {prefills}P{decodes}D {prompt} tokens", one, results)
    benchmark(one)


@pytest.mark.parametrize(("prefills", "decodes"), SIZES, ids=lambda size: str(size))
def test_dispatch_and_view(benchmark, results, prefills, decodes):
    """One request through the view: sent, seen in the next `nodes()`, ended."""
    view, names = ClusterView(), []
    for state in _cluster(prefills, decodes, 0):
        view.apply(NodeAdded(state.node_id, state.role))
        view.apply(NodeReported(state, "boot", 0.0))
        names.append(state.node_id)
    for number in range(64 * decodes):
        view.apply(Dispatched(f"old{number}", Route.REMOTE, f"p{number % prefills}", f"d{number % decodes}", 900, -2.0))
        view.apply(FirstToken(f"old{number}", -1.0))
    numbers = cycle(range(1000))

    def one() -> object:
        number = next(numbers)
        decode = f"d{number % decodes}"
        view.apply(Dispatched("new", Route.REMOTE, f"p{number % prefills}", decode, 900, 0.1))
        nodes = view.nodes(0.2)
        view.apply(Ended("new", 0.3))
        return nodes

    _report(f"view {prefills}P{decodes}D, 64 running on each", one, results)
    benchmark(one)
