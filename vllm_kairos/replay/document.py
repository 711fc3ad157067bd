"""results.json and requests.jsonl: the same keys in the same order, whatever happened."""

import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from vllm_kairos import __version__
from vllm_kairos.replay.figures import Figures
from vllm_kairos.replay.run import Outcome
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.settings import ReplaySettings
from vllm_kairos.workload.describe import describe
from vllm_kairos.workload.request import Workload

RESULTS_SCHEMA = 1
_SECRET = "api_key"


def results_document(
    command: str, settings: ReplaySettings, workload: Workload, outcome: Outcome, figures: Figures, warnings: Sequence[str]
) -> dict[str, Any]:
    """The document; times in seconds. No key and no password is in it."""
    return {
        "schema": RESULTS_SCHEMA,
        "command": command,
        "environment": {
            "kairos_version": __version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        },
        "settings": {name: value for name, value in asdict(settings).items() if name != _SECRET},
        "endpoint": {"url": outcome.endpoint.url, "path": outcome.endpoint.path, "model": outcome.endpoint.model},
        "workload": asdict(describe(workload)),
        "prompts": outcome.prompt_note,
        "warnings": list(warnings),
        "complete": not outcome.interrupted,
        "wall_s": outcome.wall_s,
        "figures": figures.as_json(),
    }


def request_rows(samples: Iterable[Sample], *, ramp_s: float, token_times: bool) -> Iterable[dict[str, Any]]:
    """A row per request that was sent; with `token_times` its arrivals and how many tokens each had."""
    for sample in samples:
        row = _row(sample, ramp_s)
        if token_times:
            row |= {"arrivals_s": sample.arrivals_s, "arrival_tokens": sample.arrival_tokens}
        yield row


def _row(sample: Sample, ramp_s: float) -> dict[str, Any]:
    request = sample.request
    return {
        "request_id": request.request_id,
        "sent_id": sample.sent_id,
        "session_id": request.session_id,
        "after": request.after,
        "warm_up": sample.due_s < ramp_s,
        "due_s": sample.due_s,
        "sent_s": sample.sent_s,
        "send_lag_s": sample.send_lag_s,
        "ttft_s": sample.ttft_s,
        "ttft_from_sent_s": sample.ttft_from_sent_s,
        "tpot_s": sample.tpot_s,
        "max_gap_s": max(sample.gaps_s, default=None),
        "e2e_s": sample.e2e_s,
        "ended_s": sample.ended_s,
        "ttft_slo_s": request.ttft_slo_s,
        "tbt_slo_s": request.tbt_slo_s,
        "trace_prompt_tokens": request.prompt_tokens,
        "prompt_tokens": sample.prompt_tokens,
        "cached_tokens": sample.cached_tokens,
        "trace_output_tokens": request.output_tokens,
        "output_tokens": sample.output_tokens,
        "finish_reason": sample.finish_reason,
        "status": sample.status,
        "error": sample.error,
        "detail": sample.detail,
        "decision": dict(sample.decision),
    }
