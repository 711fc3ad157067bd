"""One scheduler's state as a NodeStateMessage; read in the scheduler's own thread, between steps."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from vllm_kairos.engine import compat
from vllm_kairos.engine.deflection import is_deflected
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.wire.messages import NODE_STATE_SCHEMA, NodeStateMessage

QUEUE_ENTRIES = 128
"""Waiting prompts listed one by one; the total always counts all of them."""


def constant_fields(scheduler: Any, settings: EngineSettings, boot_id: str) -> dict[str, Any]:
    """The fields that do not change while the engine lives."""
    config = scheduler.vllm_config
    transfer = config.kv_transfer_config
    return {
        "schema": NODE_STATE_SCHEMA,
        "node_id": settings.node_id,
        "role": str(settings.role),
        "dp_rank": compat.dp_rank(scheduler),
        "boot_id": boot_id,
        "sequence": 0,  # the publisher stamps both
        "sent_at_s": 0.0,
        "model": config.model_config.served_model_name or config.model_config.model,
        "engine_id": (transfer.engine_id or "") if transfer is not None else "",
        "token_budget_tokens": scheduler.max_num_scheduled_tokens,
        "max_running_requests": scheduler.max_num_running_reqs,
        "max_model_len_tokens": scheduler.max_model_len,
        "block_size_tokens": scheduler.block_size,
        "total_kv_blocks": compat.total_kv_blocks(scheduler),
        "kv_bytes_per_token": compat.kv_bytes_per_token(scheduler),
    }


def read_state(scheduler: Any, constants: dict[str, Any], **more: Any) -> NodeStateMessage:
    """The state between two steps; `more` are the fields that only the caller knows."""
    return NodeStateMessage(
        **constants,
        **_running_fields(scheduler.running),
        **_waiting_fields(scheduler),
        free_kv_blocks=min(compat.free_kv_blocks(scheduler), constants["total_kv_blocks"]),
        deflected_tokens_left=_deflected_tokens_left(scheduler),
        **more,
    )


def _running_fields(running: Iterable[Any]) -> dict[str, Any]:
    decodes = kv_tokens = prefill_tokens = 0
    for request in running:
        if request.is_prefill_chunk:
            prefill_tokens += _tokens_left(request)
        else:
            decodes += 1
            kv_tokens += request.num_computed_tokens
    return {"running_decodes": decodes, "kv_tokens": kv_tokens, "running_prefill_tokens": prefill_tokens}


def _waiting_fields(scheduler: Any) -> dict[str, Any]:
    queued: list[int] = []
    total = remote_requests = remote_tokens = 0
    for request in _waiting(scheduler):
        if _waits_for_kv(scheduler, request):
            remote_requests += 1
            remote_tokens += request.num_tokens
            continue
        left = _tokens_left(request)
        total += left
        if len(queued) < QUEUE_ENTRIES:
            queued.append(left)
    return {
        "queued_prompt_tokens": queued,
        "queued_prefill_tokens": total,
        "remote_kv_requests": remote_requests,
        "remote_kv_tokens": remote_tokens,
    }


def _deflected_tokens_left(scheduler: Any) -> list[int]:
    running = [_tokens_left(r) for r in scheduler.running if r.is_prefill_chunk and is_deflected(r)]
    waiting = [_tokens_left(r) for r in _waiting(scheduler) if is_deflected(r)]
    return list(islice(running + waiting, QUEUE_ENTRIES))


def _waiting(scheduler: Any) -> list[Any]:
    return [request for queue in compat.waiting_queues(scheduler) if queue for request in queue]


def _waits_for_kv(scheduler: Any, request: Any) -> bool:
    if is_deflected(request):
        return False
    return compat.is_loading_kv(scheduler, request) or compat.will_load_kv(scheduler, request)


def _tokens_left(request: Any) -> int:
    return int(max(0, request.num_tokens + request.num_output_placeholders - request.num_computed_tokens))
