"""The simulator against the real CPU cluster: the same requests, three loads, policies never and kairos.

Run: python -m benchmarks.sim.reality --repeats 3 --out benchmarks/results/sim-reality.json

A 1P1D cluster as `kairos up` starts it serves a slice of the Azure code trace, arrivals and lengths as
recorded but scaled to the small model and to shares of what its prefill node can take by the machine's
profile. The simulator gets the same requests, the same policy objects, the nodes' own sizes and what a
profile cannot know, measured on phases that are not compared: delays around the engines on requests sent
one by one, and the KV link and how much longer steps take beside an API server on the same core on a load
of the requests that come after the slice, served before the cells of every repeat. Policies alternate;
real figures are medians over the repeats, simulated ones over seeds that draw the measured spread of steps.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.sim.calibration import Calibration, Factors, decode_factors, delays, link, prefill_factors
from benchmarks.sim.comparison import BOUNDS, Figures, figures, medians, relative_errors, rounded, verdicts
from benchmarks.sim.load import SLICE_FILE, at_load, by_length, mean_prompt_s, read_rows
from benchmarks.sim.served import Phase, serve
from benchmarks.sim.simulated import simulate, simulated_cluster
from vllm_kairos.cluster import ClusterSpec, LocalCluster
from vllm_kairos.cluster.model import find_model
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.demo.environment import describe_environment
from vllm_kairos.demo.latency_profile import cached_profile
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.sim.record import Objectives
from vllm_kairos.workload.request import Workload

POLICIES = ("never", "kairos")
PATHS = ("never", "always")
"""Policies that send every request over both nodes, and every one to the decode node."""
PREFILL, DECODE = "p0", "d0"
OBJECTIVES = Objectives(ttft_s=4.0, tbt_s=0.25)
SEEDS = range(9)
_WARM_UP, _ONE_BY_ONE = 4, 16
_OTHER_REQUESTS, _OTHER_LOAD = 80, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """The compared requests, and those after them that calibrate."""

    compared: Workload
    other: Workload


@dataclass(slots=True, kw_only=True)
class Runs:
    """What the cluster did, by policy: requests one by one, the calibration's load, and the cells, by load too."""

    idle: dict[str, Phase] = field(default_factory=dict)
    loaded: dict[str, list[Phase]] = field(default_factory=dict)
    cells: dict[tuple[float, str], list[Phase]] = field(default_factory=dict)


async def run_cluster(args: argparse.Namespace, profile: Path, model: LinearStepModel, loads: Loads) -> Runs:
    """Measure the idle cluster, then `args.repeats` times the calibration's load and every cell. Raises KairosError."""
    objectives = ("--ttft-slo-ms", f"{OBJECTIVES.ttft_s * 1e3:g}", "--tbt-slo-ms", f"{OBJECTIVES.tbt_s * 1e3:g}")
    spec = ClusterSpec(profile=str(profile), policy=POLICIES[0], router_args=objectives)
    runs = Runs()
    say("starting a prefill and a decode server")
    async with LocalCluster(spec) as cluster:
        await _serve_idle(cluster, runs, loads)
        for repeat in range(args.repeats):
            order = POLICIES if repeat % 2 == 0 else POLICIES[::-1]
            for policy in order:
                other = at_load(loads.other, _OTHER_LOAD, model)
                runs.loaded.setdefault(policy, []).append(await _served(cluster, policy, f"other-{policy}-{repeat}", other))
            for load, policy in product(args.loads, order):
                phase = await _served(cluster, policy, f"{load}-{policy}-{repeat}", at_load(loads.compared, load, model))
                runs.cells.setdefault((load, policy), []).append(phase)
    return runs


async def _serve_idle(cluster: LocalCluster, runs: Runs, loads: Loads) -> None:
    """Warm both paths up, then send requests one by one."""
    few, alone = by_length(loads.other, _WARM_UP), by_length(loads.compared, _ONE_BY_ONE)
    for policy in PATHS:
        await _served(cluster, policy, f"warm-{policy}", few, overlap=False)
    for policy in PATHS:
        runs.idle[policy] = await _served(cluster, policy, f"idle-{policy}", alone, overlap=False)


async def _served(cluster: LocalCluster, policy: str, name: str, workload: Workload, *, overlap: bool = True) -> Phase:
    say(f"{name}: {len(workload.requests)} requests")
    phase = await serve(cluster, policy, name, workload, overlap=overlap)
    if phase.errors:
        raise SystemExit(f"{name}: {len(phase.errors)} requests failed, the first with: {phase.errors[0]}")
    return phase


def calibrate(runs: Runs, model: LinearStepModel) -> Calibration:
    """What the phases that are not compared say of the cluster."""
    never, kairos = (runs.loaded[policy] for policy in POLICIES)
    remote, local = (runs.idle[policy] for policy in PATHS)
    return Calibration(
        delays=delays(remote, local, prefill_node=PREFILL, decode_node=DECODE),
        link=link([transfer for phase in never for transfer in phase.feed.transfers(DECODE)]),
        factors=step_factors([*never, *kairos], model, one_by_one=[local]),
        sizes={node: never[-1].feed.messages[node][-1] for node in (PREFILL, DECODE)},
    )


def step_factors(phases: Sequence[Phase], model: LinearStepModel, *, one_by_one: Sequence[Phase]) -> dict[str, Factors]:
    """By node."""
    budget_tokens = phases[-1].feed.messages[PREFILL][-1].token_budget_tokens
    return {
        PREFILL: prefill_factors(phases, PREFILL, model, budget_tokens),
        DECODE: decode_factors(phases, DECODE, model, one_by_one=one_by_one),
    }


def compare(
    args: argparse.Namespace, runs: Runs, model: LinearStepModel, loads: Loads, found: Calibration
) -> list[dict[str, Any]]:
    """Every cell on both sides."""
    cells = []
    for load, policy in product(args.loads, POLICIES):
        phases = runs.cells[load, policy]
        workload, real = at_load(loads.compared, load, model), [served_figures(phase) for phase in phases]
        simulated = simulate(simulated_cluster(model, found), workload, policy, OBJECTIVES, SEEDS)
        drift = _with_own_steps(phases, found, runs, model, workload)
        cells.append({"load": load, "policy": policy, **cell(real, simulated), "with_own_steps": drift})
    return cells


def _with_own_steps(
    phases: Sequence[Phase], found: Calibration, runs: Runs, model: LinearStepModel, workload: Workload
) -> dict[str, Any]:
    """The errors there would be had steps been calibrated in the cell itself: what they differ by is the machine's drift."""
    own = replace(found, factors=step_factors(phases, model, one_by_one=[runs.idle[PATHS[1]]]))
    simulated = simulate(simulated_cluster(model, own), workload, phases[0].policy, OBJECTIVES, SEEDS)
    errors = relative_errors(medians(simulated), medians([served_figures(phase) for phase in phases]))
    return {"relative_errors": errors, "steps": {node: asdict(factors) for node, factors in own.factors.items()}}


def cell(real: Sequence[Figures], simulated: Sequence[Figures]) -> dict[str, Any]:
    """Medians of both sides, their relative errors and whether those are within bounds."""
    errors = relative_errors(medians(simulated), medians(real))
    return {
        "real": asdict(medians(real)),
        "simulated": asdict(medians(simulated)),
        "relative_errors": errors,
        "within_bounds": verdicts(errors),
        "real_runs": [asdict(run) for run in real],
        "simulated_runs": [asdict(run) for run in simulated],
    }


def served_figures(phase: Phase) -> Figures:
    """The real side's figures, TTFT from when a request was due."""
    samples = phase.samples
    return figures(
        [sample.ttft_s for sample in samples],
        [gap_s for sample in samples for gap_s in sample.gaps_s],
        deflected=sum(record["decision"] == "decode-only" for record in phase.records),
        duration_s=max(sample.due_s + sample.token_times_s[-1] for sample in samples),
    )


def describe_load(args: argparse.Namespace, loads: Loads, model: LinearStepModel) -> dict[str, Any]:
    """What was sent."""
    requests = loads.compared.requests
    return {
        "trace": "Azure LLM inference trace 2023, code (CC BY 4.0, Microsoft)",
        "requests": len(requests),
        "prompt_tokens": sum(request.prompt_tokens for request in requests),
        "output_tokens": sum(request.output_tokens for request in requests),
        "mean_prefill_s_by_profile": mean_prompt_s(loads.compared, model),
        "loads": {str(load): at_load(loads.compared, load, model).duration_s for load in args.loads},
        "calibration_requests": len(loads.other.requests),
        "objectives": asdict(OBJECTIVES),
    }


def say(text: str) -> None:
    """Tell a person what happens."""
    sys.stderr.write(f"[{time.monotonic() - _STARTED_S:5.0f} s] {text}\n")
    sys.stderr.flush()


def line(row: dict[str, Any]) -> str:
    """One cell for a person: real and simulated figures, and the error in percent."""
    parts = [f"{row['load']} {row['policy']:<7}"]
    for name in (*BOUNDS, "tbt_p95_s"):
        mark = "" if row["within_bounds"].get(name, True) else " (out of bounds)"
        error = 100 * row["relative_errors"][name]
        parts.append(f"{name} {row['real'][name]:.3g} / {row['simulated'][name]:.3g} {error:+.0f} %{mark}")
    return "  ".join(parts)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="real runs of each cell, alternating (3)")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 1.0], metavar="X", help="(0.5 0.8 1.0)")
    parser.add_argument("--requests", type=int, default=160, metavar="N", help="length of the slice (160)")
    parser.add_argument("--trace", type=Path, default=SLICE_FILE, metavar="FILE", help="another trace (the slice beside this)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="first request of the slice in the trace (0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    return parser.parse_args(argv)


def main() -> None:
    """Run both sides and write the JSON; status 1 when a figure is out of its bound."""
    args = parse()
    profile = cached_profile(find_model(None), "bfloat16")
    model = load_profile(profile).step_model
    loads = Loads(
        compared=read_rows(args.trace, args.first, args.requests),
        other=read_rows(args.trace, args.first + args.requests, _OTHER_REQUESTS),
    )
    runs = asyncio.run(run_cluster(args, profile, model, loads))
    found = calibrate(runs, model)
    cells = compare(args, runs, model, loads, found)
    holds = all(verdict for row in cells for verdict in row["within_bounds"].values())
    document = {
        "command": "python -m benchmarks.sim.reality " + " ".join(sys.argv[1:]),
        "environment": describe_machine() | describe_environment(profile),
        "load": describe_load(args, loads, model),
        "bounds": dict(BOUNDS),
        "holds": holds,
        "calibration": found.document(),
        "cells": cells,
    }
    sys.stdout.write("\n".join(line(row) for row in cells) + "\n")
    if args.out:
        args.out.write_text(json.dumps(rounded(document), indent=2, allow_nan=False) + "\n")
    sys.exit(not holds)


_STARTED_S = time.monotonic()

if __name__ == "__main__":
    main()
