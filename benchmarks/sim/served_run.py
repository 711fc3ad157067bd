"""A real run of one vLLM engine, as LLMServingSim publishes it: requests, their times, and the engine second by second."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.workload.request import TraceRequest, Workload

_STEM = "llmservingsim/e2e_vllm0.19_RTXPRO6000_Llama-3.1-8B"
_LOOKS = 4000  # moments at which the batch is reconstructed
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One row per request, in the order of the file; times in seconds from the first request's."""

    engine_flags: dict[str, Any]
    names: tuple[str, ...]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    queued_s: _Floats
    scheduled_s: _Floats
    first_token_s: _Floats
    last_token_s: _Floats
    ticks: tuple[dict[str, float], ...]

    @property
    def ttft_s(self) -> _Floats:
        """From the engine's queue to the first token."""
        return self.first_token_s - self.queued_s

    @property
    def tpot_s(self) -> _Floats:
        """Mean gap of each request's tokens."""
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)

    def workload(self) -> Workload:
        """The requests as they came to the engine, past tokenizer and API."""
        rows = zip(self.names, self.queued_s, self.prompt_tokens, self.output_tokens, strict=True)
        requests = [
            TraceRequest(request_id=name, arrival_s=float(at_s), prompt_tokens=int(prompt), output_tokens=int(output))
            for name, at_s, prompt, output in rows
        ]
        return Workload.in_time_order("served-run", requests)


def read_run(data: Path) -> ServedRun:
    """Read the three files of the run below `data`."""
    rows = [json.loads(line) for line in (data / f"{_STEM}_requests.jsonl").read_text().splitlines()]
    meta = json.loads((data / f"{_STEM}_meta.json").read_text())
    with (data / f"{_STEM}_timeseries.csv").open(newline="") as file:
        ticks = tuple({key: float(value) for key, value in row.items()} for row in csv.DictReader(file))
    origin_s = min(row["queued_ts"] for row in rows)

    def times(key: str) -> _Floats:
        return np.array([row[key] - origin_s for row in rows])

    return ServedRun(
        engine_flags=meta["engine_kwargs"],
        names=tuple(row["request_id"] for row in rows),
        prompt_tokens=np.array([row["input_toks"] for row in rows]),
        output_tokens=np.array([row["output_toks"] for row in rows]),
        queued_s=times("queued_ts"),
        scheduled_s=times("scheduled_ts"),
        first_token_s=times("first_token_ts"),
        last_token_s=times("last_token_ts"),
        ticks=ticks,
    )


def prompt_step_overhead_s(run: ServedRun, model: LinearStepModel) -> float:
    """What a prompt that others' tokens waited for took beyond the model, from the run's TPOT alone.

    Between a request's first and last token lie its own steps, each a decode step of the batch at that time,
    and the prompts that started meanwhile, each with the model's cost of its tokens beside decodes. Least squares, through
    the origin, of what is left over on the number of these prompts. TTFT and queue times have no part in it.
    """
    per_s = _decode_steps_by(run, model)
    tokens = run.prompt_tokens
    extra_s = model.extra.per_token_s * tokens + model.extra.per_attention_work_s * tokens * tokens * 0.5
    counts, left_s = [], []
    for first_s, last_s, output in zip(run.first_token_s, run.last_token_s, run.output_tokens, strict=True):
        within = (run.first_token_s > first_s) & (run.first_token_s <= last_s)
        step_s = (last_s - first_s) / (per_s(last_s) - per_s(first_s))
        counts.append(within.sum())
        left_s.append(last_s - first_s - (output - 1) * step_s - extra_s[within].sum())
    return float(np.dot(left_s, counts) / np.dot(counts, counts))


def _decode_steps_by(run: ServedRun, model: LinearStepModel) -> Any:
    """Return a function of time: the decode steps there would have been by then, had no prompt been computed."""
    at_s = np.linspace(0.0, run.last_token_s.max(), _LOOKS)
    decodes = (at_s[:, None] >= run.first_token_s) & (at_s[:, None] < run.last_token_s)
    age = (at_s[:, None] - run.first_token_s) / (run.last_token_s - run.first_token_s)
    kv_tokens = (decodes * (run.prompt_tokens + run.output_tokens * age)).sum(axis=1)
    periods_s = np.array(
        [
            model.latency_s(max(1, int(count)), int(held), 0, 0)
            for count, held in zip(decodes.sum(axis=1), kv_tokens, strict=True)
        ]
    )
    steps = np.concatenate([[0.0], np.cumsum(np.diff(at_s) / periods_s[:-1])])
    return lambda moment_s: float(np.interp(moment_s, at_s, steps))
