"""When a node must take its lease back before its time is over."""

from enum import StrEnum

from vllm_kairos.core.lease.capacity import Load
from vllm_kairos.core.lease.terms import Share

_INCOMING_SHARE = 0.25  # of the granted blocks, what requests from prefill nodes may take before a new grant reckons with them


class Turned(StrEnum):
    """What is no longer as the lease had it."""

    LOW_BLOCKS = "low-blocks"  # fewer are free than what runs is expected to need
    INCOMING_KV = "incoming-kv"  # a burst of requests whose KV comes from prefill nodes
    MISSED_DEADLINE = "missed-deadline"  # a decode, in a step that carried prefill


def turned(reckoned: Load, granted: Share, now: Load, *, missed_deadlines: int = 0) -> Turned | None:
    """Say what a lease of `granted` in all, made at load `reckoned`, did not reckon with; None: it still holds."""
    if missed_deadlines:
        return Turned.MISSED_DEADLINE
    if now.free_kv_blocks < now.needed_kv_blocks:
        return Turned.LOW_BLOCKS
    came_tokens = now.incoming_kv_tokens - reckoned.incoming_kv_tokens
    if came_tokens > _INCOMING_SHARE * granted.kv_blocks * now.block_size_tokens:
        return Turned.INCOMING_KV
    return None
