"""The profile of an H200, from times of whole requests that Dynamo's profiler measured."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.profiles.gpus import LLAMA_8B
from benchmarks.profiles.operators import step_sample
from benchmarks.profiles.shipping import SEED, Identity, profile_of
from benchmarks.profiles.tables import read_rows
from vllm_kairos.fitting.artifact import Accuracy, Profile
from vllm_kairos.fitting.features import Sample
from vllm_kairos.fitting.fit import FitReport, fit

_BUDGET_TOKENS = 8192
_MOST_DECODES = 1000  # above it the engine ran fewer at a time, and the table does not say how many

_SOURCE = (
    "Inputs: Dynamo's profiling results (Apache-2.0), measured on a running engine. Prefill: TTFT of one request on an idle "
    "engine, 100 to 16,372 tokens, less {front_end_ms:.1f} ms for the front end, which is what makes a step of no tokens as "
    "long as a decode step of one sequence; add it to compare TTFTs, as held-out errors do. "
    "Prefixes were not measured: attention to them costs what "
    "the prompt's own attention work does. Decode: inter-token latency by KV use and context, decodes = KV tokens over "
    "context; rows above 1,000 decodes were left out since the batch was capped there. Mixed steps were not measured: decode "
    "step + TTFT of the chunk less that of no tokens, for every pair of rows up to 8,192 tokens; nothing overlaps in such a "
    "sum, so it is an upper estimate, and no error can be given for it. period_overhead_s is 0: the times are from token to "
    "token. KV memory as the engine reported it."
)


def build(data: Path) -> Profile:
    """Fit the profile."""
    prefill = _ttfts(data / "dynamo/h200_llama3.1_8b_fp8_tp1_prefill.csv")
    decode = _itls(data / "dynamo/h200_llama3.1_8b_fp8_tp1_decode.csv")
    front_end_s = _empty_s(prefill) - min(step_s for _, _, step_s in decode)
    report = _without_front_end(prefill, decode, front_end_s)
    identity = Identity(
        hardware="NVIDIA H200-SXM-141GB",
        model="Llama-3.1-8B FP8",
        vllm_version="not stated",
        engine_flags=("--tensor-parallel-size=1", "--quantization=fp8"),
        kv_bytes_per_token=LLAMA_8B.kv_bytes_per_token,
        kv_capacity_tokens=945029,
        token_budget_tokens=_BUDGET_TOKENS,
        period_overhead_s=0.0,
        note="prefill and decode measured end to end, mixed steps derived; see source",
        source=_SOURCE.format(front_end_ms=front_end_s * 1e3),
    )
    return profile_of(identity, report)


BUILDERS: Mapping[str, Callable[[Path], Profile]] = {"h200-llama3.1-8b-fp8": build}


def _ttfts(path: Path) -> list[tuple[int, float]]:
    return [(int(row["isl"]), float(row["ttft_ms"]) * 1e-3) for row in read_rows(path)]


def _itls(path: Path) -> list[tuple[int, int, float]]:
    """Return decodes, context of each and seconds."""
    found = []
    for row in read_rows(path):
        context = float(row["context_length"])
        decodes = round(float(row["kv_usage"]) * int(row["max_kv_tokens"]) / context)
        if decodes <= _MOST_DECODES:
            found.append((decodes, round(context), float(row["itl_ms"]) * 1e-3))
    return found


def _empty_s(prefill: list[tuple[int, float]]) -> float:
    """TTFT of no tokens, on the line through the two shortest prompts."""
    (low, low_s), (high, high_s) = prefill[:2]
    return low_s - low * (high_s - low_s) / (high - low)


def _without_front_end(prefill: list[tuple[int, float]], decode: list[tuple[int, int, float]], front_end_s: float) -> FitReport:
    """Fit what was measured, and take the constant out of its fit: errors stay relative to TTFT."""
    mixed = _mixed(prefill, decode, _empty_s(prefill))
    whole = fit([*_prefill(prefill, 0.0), *_decode(decode), *mixed], seed=SEED)
    steps = fit([*_prefill(prefill, front_end_s), *_decode(decode), *mixed], seed=SEED)
    cost = whole.fitted.prefill
    unknown = Accuracy(mape=0.0, worst_error=0.0, configurations=0)
    return replace(
        steps,
        fitted=replace(steps.fitted, prefill=replace(cost, fixed_s=cost.fixed_s - front_end_s)),
        accuracy={**whole.accuracy, "mixed": unknown},
    )


def _prefill(rows: list[tuple[int, float]], front_end_s: float) -> list[Sample]:
    return [step_sample(tokens, 0, 0, 0, seconds - front_end_s) for tokens, seconds in rows]


def _decode(rows: list[tuple[int, int, float]]) -> list[Sample]:
    return [step_sample(0, 0, decodes, context, seconds) for decodes, context, seconds in rows]


def _mixed(prefill: list[tuple[int, float]], decode: list[tuple[int, int, float]], empty_s: float) -> list[Sample]:
    return [
        step_sample(tokens, 0, decodes, context, step_s + chunk_s - empty_s)
        for tokens, chunk_s in prefill
        for decodes, context, step_s in decode
        if tokens <= _BUDGET_TOKENS
    ]
