"""What a node can take on: prefill beside its decodes, KV blocks it will not need itself, output it can hold."""

from dataclasses import dataclass
from math import inf

from vllm_kairos.core.governor.chunk import NO_CHUNKS, Prompt, largest_chunk
from vllm_kairos.core.governor.price import StepPrice
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease.terms import Share

_SHORTEST_STEP_S = 1e-4  # a model may predict nothing at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a node has and is about to have, everything that it admitted included."""

    running_decodes: int
    kv_tokens: int  # of the running decodes
    incoming_requests: int = 0  # their KV is being pulled, or about to be
    incoming_kv_tokens: int = 0
    queued_prompts: int = 0  # to be computed here, running ones too
    queued_prefill_tokens: int = 0  # what is left of them
    free_kv_blocks: int
    needed_kv_blocks: int = 0  # of the free ones, those that all of the above is expected to take yet
    block_size_tokens: int = 16
    free_slots: int  # requests that may still be taken on before vLLM's limit is reached
    output_tokens: int = 256  # expected of one more request

    @property
    def spare_kv_blocks(self) -> int:
        return max(0, self.free_kv_blocks - self.needed_kv_blocks)


def capacity(
    model: StepLatencyModel, load: Load, *, tbt_s: float, beta: float, horizon_s: float, token_budget_tokens: int
) -> tuple[Share, int]:
    """Return what may still be taken on, and in how many steps its prefill can be computed.

    Prefill: the steps that fit into `horizon_s` if each carries what is computed within `beta` of the time `tbt_s`
    beside all decodes that run or are about to, less what is queued already. Output: what spare blocks hold, and no more
    than free slots are expected to produce.
    """
    chunk_tokens, step_s = _largest_step(model, load, min(beta * tbt_s, horizon_s), horizon_s, token_budget_tokens)
    most_tokens = int(horizon_s / max(step_s, _SHORTEST_STEP_S) * chunk_tokens)
    prefill_tokens = max(0, most_tokens - load.queued_prefill_tokens)
    output_tokens = min(load.spare_kv_blocks * load.block_size_tokens, max(0, load.free_slots) * load.output_tokens)
    steps = -(-prefill_tokens // chunk_tokens) if chunk_tokens else 0
    return Share(prefill_tokens, load.spare_kv_blocks, output_tokens), steps


def _largest_step(
    model: StepLatencyModel, load: Load, limit_s: float, idle_limit_s: float, budget_tokens: int
) -> tuple[int, float]:
    """The most prefill tokens of one step beside the decodes, and how long it takes; without decodes nothing waits."""
    decodes = load.running_decodes + load.incoming_requests + load.queued_prompts
    kv_tokens = load.kv_tokens + load.incoming_kv_tokens + load.queued_prefill_tokens
    most_tokens = max(0, budget_tokens - decodes)
    price = StepPrice(model, decodes, kv_tokens)
    limit_s = limit_s if decodes else idle_limit_s
    tokens = largest_chunk(price, limit_s, NO_CHUNKS, Prompt(0, most_tokens), most_tokens) if most_tokens else 0
    return tokens, model.latency_s(decodes, kv_tokens, tokens, 0) if tokens else inf
