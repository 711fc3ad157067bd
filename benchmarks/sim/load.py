"""The compared load: real arrivals and lengths, scaled to a small model and to a share of what it can take."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.demo.load import PlannedRequest
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.load import load_trace
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.transforms import at_rate

SLICE_FILE = Path(__file__).parent / "data" / "azure_code_2023_slice.csv"
PROMPT_SCALE, OUTPUT_SCALE = 0.3, 0.5
_PROMPT_TOKENS = 32, 2048
_OUTPUT_TOKENS = 2, 64
_TOKEN_IDS = 1_000, 40_000
"""Ordinary text tokens of the small model, clear of its special ones."""


def read_rows(path: Path, first: int, count: int) -> Workload:
    """`count` requests of a trace from request `first` on, lengths scaled to the small model. Raises WorkloadError."""
    trace = load_trace(path, limit=first + count)
    rows = trace.requests[first:]
    if len(rows) < count:
        raise WorkloadError(f"{path}: requests must be >= {first + count}, got {len(trace.requests)}")
    return replace(trace, requests=tuple(_small(row, rows[0].arrival_s) for row in rows))


def at_load(workload: Workload, load: float, model: LinearStepModel) -> Workload:
    """`workload` at the rate that keeps one prefill node busy for a share of `load`, by its latency model."""
    return at_rate(workload, load / mean_prompt_s(workload, model))


def mean_prompt_s(workload: Workload, model: LinearStepModel) -> float:
    """Seconds of a prefill node for one of the prompts, on average, each in a step of its own."""
    return fmean(model.latency_s(0, 0, request.prompt_tokens, 0) for request in workload.requests)


def by_length(workload: Workload, count: int) -> Workload:
    """`count` of the requests, evenly over their prompt lengths, shuffled so that no drift looks like a length's effect."""
    ordered = sorted(workload.requests, key=lambda request: (request.prompt_tokens, request.request_id))
    step = max(1, len(ordered) // count)
    chosen = ordered[step // 2 :: step][:count]
    random.Random(0).shuffle(chosen)
    return replace(workload, requests=tuple(replace(request, arrival_s=0.0) for request in chosen))


def planned(requests: Sequence[TraceRequest], run: str) -> tuple[PlannedRequest, ...]:
    """The same requests for the client; `run` varies the prompts' tokens, so that no prefix cache has seen one before."""
    source = random.Random(run)
    return tuple(
        PlannedRequest(
            at_s=request.arrival_s,
            prompt=tuple(source.randrange(*_TOKEN_IDS) for _ in range(request.prompt_tokens)),
            output_tokens=request.output_tokens,
        )
        for request in requests
    )


def _small(row: TraceRequest, origin_s: float) -> TraceRequest:
    return replace(
        row,
        arrival_s=row.arrival_s - origin_s,
        prompt_tokens=_clamped(row.prompt_tokens * PROMPT_SCALE, _PROMPT_TOKENS),
        output_tokens=_clamped(row.output_tokens * OUTPUT_SCALE, _OUTPUT_TOKENS),
    )


def _clamped(tokens: float, bounds: tuple[int, int]) -> int:
    return min(max(round(tokens), bounds[0]), bounds[1])
