"""What a request's first token costs on each path (paper section 4.2, with its slips corrected)."""

from collections.abc import Sequence
from functools import lru_cache

from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel
from vllm_kairos.core.node import LinkState, NodeState
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

_EMPTY = PrefillTotals(0, 0, 0, 0.0)


@lru_cache(maxsize=4096)
def queue_totals(prompts: tuple[int, ...], queued_tokens: int, budget_tokens: int) -> PrefillTotals:
    """Add up what it takes to compute a FIFO queue in steps of `budget_tokens` tokens.

    A step is filled from the front of the queue, so several short prompts share one and a long one
    spans several. `queued_tokens` beyond `prompts` (a capped list) count as prompts of the mean length.
    """
    totals = _EMPTY
    for prompt in prompts:
        totals = _queue_behind(totals, prompt, 0, budget_tokens)
    unlisted = queued_tokens - totals.tokens
    if unlisted > 0:
        mean = max(1, totals.tokens // len(prompts)) if totals.tokens else budget_tokens
        count = -(-unlisted // mean)
        one = _queue_behind(_EMPTY, -(-unlisted // count), 0, budget_tokens)
        totals = PrefillTotals(
            steps=-(-(totals.tokens + unlisted) // budget_tokens),
            tokens=totals.tokens + unlisted,
            done_tokens=totals.done_tokens + count * one.done_tokens,
            attention_work=totals.attention_work + count * one.attention_work,
        )
    return totals


def prefill_completion_s(model: StepLatencyModel, node: NodeState, request: RequestShape) -> float:
    """Predict queue wait plus own prefill on `node` (paper Eq. 1 to 3), chunks counted exactly.

    The prompt starts in whatever the last step of the queue leaves of its budget, so the two cannot
    be told apart by whole steps: this is the time until the queue and the prompt are both done.
    """
    budget = node.token_budget_tokens
    ahead = queue_totals(node.queued_prompt_tokens, node.queued_prefill_tokens, budget)
    new = request.uncached_tokens(node.node_id)
    return model.prefill_total_s(_queue_behind(ahead, new, request.prompt_tokens - new, budget))


def prefill_completions_s(model: StepLatencyModel, nodes: Sequence[NodeState], request: RequestShape) -> list[float]:
    """Return `prefill_completion_s` of each node, for less where none has anything cached."""
    if request.cached_tokens:
        return [prefill_completion_s(model, node, request) for node in nodes]
    new, total_s = request.prompt_tokens, model.prefill_total_s
    return [
        total_s(
            _queue_behind(queue_totals(node.queued_prompt_tokens, node.queued_prefill_tokens, budget), new, 0, budget)
            if node.queued_prefill_tokens
            else _queue_behind(_EMPTY, new, 0, budget)
        )
        for node in nodes
        for budget in (node.token_budget_tokens,)
    ]


def queue_wait_s(model: StepLatencyModel, node: NodeState) -> float:
    """Predict how long what is queued on `node` keeps it busy."""
    budget = node.token_budget_tokens
    return model.prefill_total_s(queue_totals(node.queued_prompt_tokens, node.queued_prefill_tokens, budget))


def transfer_bytes(node: NodeState, request: RequestShape, settings: DecisionSettings) -> int:
    """KV bytes that decode node `node` would have to pull for `request`."""
    return request.uncached_tokens(node.node_id) * (node.kv_bytes_per_token or settings.kv_bytes_per_token)


def transfers_bytes(nodes: Sequence[NodeState], request: RequestShape, settings: DecisionSettings) -> list[int]:
    """Return `transfer_bytes` of each node, for less where none has anything cached."""
    if request.cached_tokens:
        return [transfer_bytes(node, request, settings) for node in nodes]
    tokens, default = request.prompt_tokens, settings.kv_bytes_per_token
    return [tokens * (node.kv_bytes_per_token or default) for node in nodes]


def transfer_s(link: LinkState | None, size_bytes: int, default_bandwidth_bytes_per_s: float) -> float:
    """Predict the KV transfer of `size_bytes` behind what is queued on the link; None: nothing is known of it."""
    if link is None:
        return size_bytes / default_bandwidth_bytes_per_s
    bandwidth = link.bandwidth_bytes_per_s or default_bandwidth_bytes_per_s
    return link.latency_s + (link.queued_bytes + size_bytes) / bandwidth


def first_decode_steps_s(model: StepLatencyModel, nodes: Sequence[NodeState], request: RequestShape) -> Sequence[float]:
    """Predict, for each node, the decode step that yields the first token, beside all decodes that will run by then."""
    return model.joined_steps_s([node.coming_load for node in nodes], request.prompt_tokens)


def _queue_behind(ahead: PrefillTotals, tokens: int, done: int, budget: int) -> PrefillTotals:
    """Append a prompt of `tokens` tokens, `done` of it computed, to a queue drained `budget` tokens a step."""
    _, ahead_tokens, ahead_done, ahead_work = ahead
    space = budget - ahead_tokens % budget  # in the queue's last step
    first = tokens if tokens < space else space
    more = -(-(tokens - first) // budget)  # chunks after the first
    total = ahead_tokens + tokens
    return PrefillTotals(
        -(-total // budget),
        total,
        ahead_done + (more + 1) * done + more * first + budget * (more * (more - 1) // 2),
        ahead_work + tokens * done + tokens * tokens * 0.5,
    )
