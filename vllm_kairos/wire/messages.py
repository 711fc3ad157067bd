"""Node state as it leaves an engine core. Times are the sender's; freshness is judged by receipt time."""

import msgspec

NODE_STATE_SCHEMA = 1
"""Raise when a field changes meaning or is removed; a reader refuses a schema newer than its own."""


class StepSample(msgspec.Struct, frozen=True, array_like=True):
    """One measured engine step."""

    running_decodes: int
    kv_tokens: int
    prefill_tokens: int
    done_tokens: int
    step_s: float


class TransferSample(msgspec.Struct, frozen=True, array_like=True):
    """One finished KV pull into this node."""

    peer: str  # NIXL engine id of the node it came from
    transferred_bytes: int
    transfer_s: float


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """How much local prefill a decode node takes on for a short time, in all and by router."""

    lease_id: str
    expires_in_s: float
    prefill_tokens: int
    kv_blocks: int
    epoch: int = 0
    steps: int = 0  # engine steps that the prefill tokens take
    output_tokens: int = 0
    transfer_tokens: int = 0  # KV tokens that are being pulled
    shares: dict[str, tuple[int, int, int]] = {}  # by router: prefill tokens, KV blocks, output tokens


class NodeStateMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One engine core's state; one sender per data-parallel rank."""

    schema: int
    node_id: str
    role: str
    dp_rank: int
    boot_id: str
    sequence: int
    sent_at_s: float
    state_age_s: float = 0.0  # how long before sending the state was read; grows while a step runs or nothing happens
    model: str
    engine_id: str  # the KV connector's engine id, "" without one
    running_decodes: int
    kv_tokens: int
    queued_prompt_tokens: list[int]
    queued_prefill_tokens: int
    running_prefill_tokens: int
    token_budget_tokens: int
    max_running_requests: int
    max_model_len_tokens: int
    block_size_tokens: int
    free_kv_blocks: int
    total_kv_blocks: int
    kv_bytes_per_token: int
    remote_kv_requests: int
    remote_kv_tokens: int
    deflected_tokens_left: list[int]  # one entry per deflected prefill under way or waiting
    step_samples: list[StepSample] = []
    transfer_samples: list[TransferSample] = []
    lease: Lease | None = None
    speaks_leases: bool = False  # without a lease then: it takes no deflected request that needs one
    skipped_transfers: int = 0  # KV pulls that deflection made needless, since boot
    skipped_transfer_bytes: int = 0
    malformed_schedules: int = 0  # requests whose kairos parameters were ignored, since boot
