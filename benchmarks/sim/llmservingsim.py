"""A real vLLM run of 300 requests on one GPU against its replay in the simulator.

    python -m benchmarks.sim.llmservingsim --data DIR --out benchmarks/results/sim/llmservingsim.json

DIR holds `llmservingsim/`, public measurements of casys-kaist/LLMServingSim (MIT): vLLM 0.19, Llama-3.1-8B on an RTX PRO
6000, max_num_seqs 128, 2,048-token budget, ShareGPT prompts at 10 requests/s. One engine for both phases cannot keep up
with them, so that TTFT is mostly the wait for one of the 128 slots. Replayed with the shipped profile as it is, and with what a
step that carries a prompt took beyond the profile, measured from the run's TPOT (`served_run.prompt_step_overhead_s`).
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.environment import describe_machine
from benchmarks.sim.served_run import ServedRun, prompt_step_overhead_s, read_run
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.core.node import Role
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.profiles import load_shipped
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation

_PROFILE = "rtxpro6000-llama3.1-8b"
_PERCENTILES = (50, 90, 99)
_TOLERANCE = 0.15
_Floats = NDArray[np.float64]


def main(argv: Sequence[str] | None = None) -> None:
    """Replay the run twice and write the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    run, profile = read_run(options.data), load_shipped(_PROFILE)
    model = profile.step_model
    overhead_s = prompt_step_overhead_s(run, model)
    document: dict[str, Any] = {
        "benchmark": "llmservingsim",
        "environment": describe_machine(),
        "run": {"requests": len(run.names), "engine_flags": run.engine_flags, "kv_tokens": profile.kv_capacity_tokens},
        "prefix_caching": "off: the data have no token ids, so that no prefix is known to repeat",
        "tolerance": _TOLERANCE,
        "prompt_step_overhead_ms": round(overhead_s * 1e3, 2),
        "raw": _compared(run, _replay(run, profile, model)),
        "corrected": _compared(run, _replay(run, profile, _slower_prompts(model, overhead_s))),
        "decode_step_ms": _decode_steps(run, model),
    }
    options.out.write_text(json.dumps(document, indent=2) + "\n")
    for name in ("raw", "corrected"):
        print(name, json.dumps({key: document[name][key] for key in ("ttft_ms", "tpot_ms", "duration_s")}))  # noqa: T201


def _slower_prompts(model: LinearStepModel, overhead_s: float) -> LinearStepModel:
    """The same model with every step that carries a prompt beside decodes `overhead_s` longer."""
    return replace(model, extra=replace(model.extra, fixed_s=model.extra.fixed_s + overhead_s))


def _replay(run: ServedRun, profile: Profile, model: StepLatencyModel) -> Outcome:
    """One engine, no router in front: the run's times are the engine's own."""
    engine = EngineSpec(
        name="engine",
        role=Role.BOTH,
        model=model,
        kv_blocks=(profile.kv_capacity_tokens or 0) // profile.block_size_tokens,
        block_size_tokens=profile.block_size_tokens,
        token_budget_tokens=run.engine_flags["max_num_batched_tokens"],
        max_running_requests=run.engine_flags["max_num_seqs"],
        default_chunk_tokens=None,
        prefix_caching=False,
    )
    cluster = ClusterSpec(engines=(engine,), router=RouterSpec(decision_latency_s=0.0, hop_s=0.0))
    return Simulation(cluster, run.workload(), build_policy("aggregated", cluster).policy).run()


def _compared(run: ServedRun, outcome: Outcome) -> dict[str, Any]:
    records = {record.request.request_id: record for record in outcome.requests}
    ordered = [records[name] for name in run.names]
    admission_s = np.array([record.breakdown.prefill_queue_s for record in ordered])
    execution_s = np.array([record.breakdown.prefill_exec_s for record in ordered])
    last_s = float(run.last_token_s.max())
    return {
        "ttft_ms": _quantiles(run.ttft_s, np.array([record.ttft_s for record in ordered])),
        "tpot_ms": _quantiles(run.tpot_s, np.array([record.tpot_s for record in ordered])),
        "queue_ms": _quantiles(run.scheduled_s - run.queued_s, admission_s),
        "scheduled_to_first_token_ms": _quantiles(run.first_token_s - run.scheduled_s, execution_s),
        "duration_s": _pair(last_s, outcome.duration_s),
        "output_tokens_per_s": _pair(run.output_tokens.sum() / last_s, run.output_tokens.sum() / outcome.duration_s),
        "steps": outcome.engines[0].steps,
        "over_time": _over_time(run, outcome),
    }


def _quantiles(real_s: _Floats, simulated_s: _Floats) -> dict[str, dict[str, float]]:
    pairs = zip(_PERCENTILES, np.percentile(real_s, _PERCENTILES), np.percentile(simulated_s, _PERCENTILES), strict=True)
    return {f"p{percent}": _pair(real * 1e3, simulated * 1e3) for percent, real, simulated in pairs}


def _pair(real: float, simulated: float) -> dict[str, float]:
    return {"real": round(float(real), 2), "simulated": round(simulated, 2), "error": round(simulated / real - 1, 4)}


def _over_time(run: ServedRun, outcome: Outcome) -> dict[str, Any]:
    """Running and waiting requests at the run's own ticks, every fifth of them, with the mean absolute difference."""
    moments_s = np.array([tick["t"] for tick in run.ticks])
    started_s, ended_s, queued_s = (np.array(times) for times in zip(*map(_lifetime, outcome.requests), strict=True))
    simulated = {
        "running": _between(moments_s, started_s, ended_s),
        "waiting": _between(moments_s, queued_s, started_s),
    }
    found: dict[str, Any] = {"t_s": moments_s[::5].tolist()}
    for name, counts in simulated.items():
        real = np.array([tick[name] for tick in run.ticks])
        mean = round(float(np.abs(real - counts).mean()), 2)
        found[name] = {"real": real[::5].tolist(), "simulated": counts[::5].tolist(), "mean_absolute_difference": mean}
    return found


def _lifetime(record: Any) -> tuple[float, float, float]:
    """When it got a slot, when it ended, when it came."""
    return record.arrival_s + record.breakdown.prefill_queue_s, record.finished_s, record.arrival_s


def _between(moments_s: _Floats, from_s: _Floats, to_s: _Floats) -> NDArray[np.int64]:
    within = (moments_s[:, None] >= from_s) & (moments_s[:, None] < to_s)
    return np.asarray(within.sum(axis=1), dtype=np.int64)


def _decode_steps(run: ServedRun, model: LinearStepModel) -> list[dict[str, float]]:
    """Seconds in which no prompt was computed and the batch hardly changed: what a step took, and what the profile says."""
    found = []
    for before, tick in zip(run.ticks, run.ticks[1:], strict=False):
        middle_s = tick["t"] - 0.5
        decoding = (run.first_token_s <= middle_s) & (run.last_token_s > middle_s)
        if tick["prompt_throughput"] or before["prompt_throughput"] or decoding.sum() < 8:
            continue
        age = (middle_s - run.first_token_s) / (run.last_token_s - run.first_token_s)
        held = int((decoding * (run.prompt_tokens + run.output_tokens * age)).sum())
        count = int(decoding.sum())
        period_s, predicted_s = count / tick["gen_throughput"], model.latency_s(count, held, 0, 0)
        found.append({"t_s": tick["t"], "decodes": count, "kv_tokens": held, **_pair(period_s * 1e3, predicted_s * 1e3)})
    return found


if __name__ == "__main__":
    main()
