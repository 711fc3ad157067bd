"""What leases need to know of a scheduler and its requests. Read against vLLM 0.30.0, 0.31.0 and 0.32.0."""

from typing import Any

from vllm.v1.request import RequestStatus

_BY_ITSELF = frozenset({RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED})


def ended_by_itself(request: Any) -> bool:
    """Whether `request`, which ends, has all its output. Seam: it has its status when `_free_request` is called (0.30-0.32)."""
    return request.status in _BY_ITSELF


def waited_decodes(scheduler: Any, output: Any) -> int:
    """How many requests of a step that carried prefill only took their next token in it; 0 where it carried none."""
    scheduled = output.num_scheduled_tokens
    widest = 1 + scheduler.num_spec_tokens
    decodes = sum(tokens <= widest for tokens in scheduled.values())
    return decodes if decodes < len(scheduled) else 0
