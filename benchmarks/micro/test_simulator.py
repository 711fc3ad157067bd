"""How fast the simulator is (one core, CPU time, fixed seeds).

    KAIROS_TRACES=DIR python -m pytest benchmarks/micro/test_simulator.py -s
    KAIROS_TRACES=DIR KAIROS_BENCH_OUT=benchmarks/results/sim/simulator-speed.json \
        python -m pytest benchmarks/micro/test_simulator.py -s -m "slow or not slow"

DIR holds the traces by project, as docs/workloads.md names them; skipped without it. All on Azure's conversation trace of
an hour under `kairos`: the whole hour on 2P2D; 2,000 to 16,000 requests of it; and, marked slow, an hour of 100 requests/s on
32P32D, the trace repeated. The time without a profiler is what counts; a profiled run says where it goes.
"""

import cProfile
import json
import os
import pstats
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.environment import describe_machine
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.sections import ClusterConfig
from vllm_kairos.workload import transforms
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import Workload

TRACE = "azure_2023/AzureLLMInferenceTrace_conv.csv"
PROFILE = "a100-llama3-8b"
GROWING = (2_000, 4_000, 8_000, 16_000)
FLEET, FLEET_RATE_RPS, FLEET_REQUESTS = "32P32D", 100.0, 360_000
_ROUNDS = 2
_SHOWN = 12


@pytest.fixture(scope="module")
def trace() -> Workload:
    """The whole hour at its own times."""
    folder = os.environ.get("KAIROS_TRACES")
    if not folder:
        pytest.skip("KAIROS_TRACES must name the folder of the traces")
    return load_trace(Path(folder) / TRACE)


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """Collects the figures and writes them where KAIROS_BENCH_OUT says, beside those of tests that did not run."""
    collected: dict[str, Any] = {}
    yield collected
    if out := os.environ.get("KAIROS_BENCH_OUT"):
        path = Path(out)
        known = json.loads(path.read_text()) if path.exists() else {}
        document = {**known, "benchmark": "simulator-speed", "environment": describe_machine(), **collected}
        path.write_text(json.dumps(document, indent=2) + "\n")


def _simulation(nodes: str, workload: Workload) -> Simulation:
    cluster = build_cluster(SimulateConfig(cluster=ClusterConfig(nodes=nodes, profile=PROFILE)))
    return Simulation(cluster, workload, build_policy("kairos", cluster).policy)


def _timed(nodes: str, workload: Workload) -> tuple[float, float, Outcome]:
    """CPU and wall seconds, and what came out."""
    simulation = _simulation(nodes, workload)
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    outcome = simulation.run()
    return time.process_time() - cpu_s, time.perf_counter() - wall_s, outcome


def _figures(nodes: str, cpu_s: float, wall_s: float, outcome: Outcome) -> dict[str, Any]:
    requests = len(outcome.requests)
    return {
        "nodes": nodes,
        "requests": requests,
        "events": outcome.events,
        "steps": sum(engine.steps for engine in outcome.engines),
        "simulated_s": round(outcome.duration_s, 1),
        "cpu_s": round(cpu_s, 2),
        "wall_s": round(wall_s, 2),
        "cpu_us_per_request": round(cpu_s / requests * 1e6, 1),
        "cpu_us_per_event": round(cpu_s / outcome.events * 1e6, 2),
    }


def _report(name: str, figures: Any, results: dict[str, Any]) -> None:
    results[name] = figures
    print(f"\n{name:<20} {json.dumps(figures)}")  # noqa: T201


def _hot_spots(run: Callable[[], object]) -> list[dict[str, Any]]:
    """The functions that took longest by themselves, under a profiler that slows calls down."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(run)
    stats = pstats.Stats(profiler)
    rows = sorted(stats.stats.items(), key=lambda item: -item[1][2])  # type: ignore[attr-defined]
    total_s = stats.total_tt  # type: ignore[attr-defined]
    return [
        {"function": f"{_module(file)}:{name}", "calls": calls, "own_share": round(own_s / total_s, 3)}
        for (file, _, name), (_, calls, own_s, _, _) in rows[:_SHOWN]
    ]


def _module(file: str) -> str:
    """The path below the package, or the last name of any other."""
    return file.partition("vllm_kairos/")[2] or Path(file).name


def test_whole_hour(benchmark, trace, results):
    cpu_s, wall_s, outcome = benchmark.pedantic(_timed, args=("2P2D", trace), rounds=1)
    figures = _figures("2P2D", cpu_s, wall_s, outcome)
    assert figures["requests"] == len(trace.requests)
    figures["hot_spots"] = _hot_spots(_simulation("2P2D", transforms.first(trace, 4000)).run)
    _report("whole-hour", figures, results)


def test_time_per_request_as_the_trace_grows(trace, results):
    """The least of a few runs of each length, at one rate."""
    rate_rps = transforms.mean_rate_rps(trace)
    rows = []
    for count in GROWING:
        workload = transforms.at_rate(transforms.first(trace, count), rate_rps)
        cpu_s, wall_s, outcome = min((_timed("2P2D", workload) for _ in range(_ROUNDS)), key=lambda run: run[0])
        rows.append(_figures("2P2D", cpu_s, wall_s, outcome))
    ratio = rows[-1]["cpu_us_per_request"] / rows[0]["cpu_us_per_request"]
    _report("growing-trace", {"ratio_of_longest_to_shortest": round(ratio, 3), "rows": rows}, results)


@pytest.mark.slow
def test_fleet_hour(trace, results):
    workload = transforms.at_rate(_repeated(trace, FLEET_REQUESTS), FLEET_RATE_RPS)
    cpu_s, wall_s, outcome = _timed(FLEET, workload)
    figures = _figures(FLEET, cpu_s, wall_s, outcome)
    figures["hot_spots"] = _hot_spots(_simulation(FLEET, transforms.first(workload, 4000)).run)
    _report("fleet-hour", figures, results)


def _repeated(trace: Workload, requests: int) -> Workload:
    """The trace over and over, each time a mean gap after its end."""
    period_s = trace.duration_s + 1 / transforms.mean_rate_rps(trace)
    copies = -(-requests // len(trace.requests))
    found = [
        replace(request, request_id=f"{copy}-{request.request_id}", arrival_s=request.arrival_s + copy * period_s)
        for copy in range(copies)
        for request in trace.requests
    ]
    return Workload.in_time_order(f"{trace.name}, repeated", found[:requests])
