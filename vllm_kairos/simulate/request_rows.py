"""One row per request, for requests.csv."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from vllm_kairos.core.decision import Assign
from vllm_kairos.sim.record import RequestRecord
from vllm_kairos.sim.simulator import Outcome

COLUMNS = (
    "request_id",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "decision",
    "reason",
    "prefill_node",
    "decode_node",
    "predicted_remote_ttft_s",
    "predicted_local_ttft_s",
    "in_fitted_range",
    "ttft_s",
    "tpot_s",
    "finished_s",
    "router_s",
    "prefill_queue_s",
    "prefill_exec_s",
    "transfer_s",
    "decode_wait_s",
    "hit_tokens",
    "preemptions",
)


def request_rows(outcome: Outcome) -> Iterator[tuple[Any, ...]]:
    """Rows in the order of COLUMNS; a time that never came is None."""
    for record in outcome.requests:
        parts = record.breakdown
        yield (
            record.request.request_id,
            record.arrival_s,
            record.request.prompt_tokens,
            record.request.output_tokens,
            *_decision(record),
            *(time_s if isfinite(time_s) else None for time_s in (record.ttft_s, record.tpot_s, record.finished_s)),
            parts.router_s,
            parts.prefill_queue_s,
            parts.prefill_exec_s,
            parts.transfer_s,
            parts.decode_wait_s,
            record.hit_tokens,
            record.preemptions,
        )


def _decision(record: RequestRecord) -> tuple[Any, ...]:
    decision = record.decision
    if not isinstance(decision, Assign):
        return "rejected", str(decision.reason), None, None, None, None, None
    route, reason = str(decision.route), str(decision.reason)
    predictions = decision.remote_ttft_s, decision.local_ttft_s, decision.in_fitted_range
    return route, reason, decision.prefill_node, decision.decode_node, *predictions
