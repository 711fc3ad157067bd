"""What the prefill that a decode node already has costs a prompt sent behind it.

`KairosScheduler` serves prefills in order: running ones, then first come, first served. A prompt starts
once those ahead of it are done, beside decodes that they have become.
"""

from dataclasses import dataclass
from math import inf

from vllm_kairos.core.chunking import Planned, build_schedule
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.settings import DecisionSettings

_LEAST_PREFILL_TOKENS = 16  # what a step carries where decodes alone fill the chunk
_SAFE = 1 - 1e-9  # a schedule adds the same terms up in another order


@dataclass(frozen=True, slots=True)
class Ahead:
    """How long the prefill ahead of a prompt takes, and the (B, K) that the prompt then runs beside."""

    wait_s: float
    load: tuple[int, int]


def ahead_of_prompt(model: StepLatencyModel, node: NodeState, settings: DecisionSettings, limit_s: float) -> Ahead:
    """Predict what `node` has to compute before a new prompt, in time that grows with the candidates alone.

    Deflected prompts run in the largest chunks that keep steps within `limit_s`, the others in the chunk
    that the engine gives to prefill nobody planned. Each part counts as one prompt from its start: how
    far its prompts have come is not reported. Neither the wait nor the load ever shrinks as more is queued.
    """
    prompts, tokens, deflected = node.prefill_ahead
    decodes, kv_tokens = node.decode_load
    wait_s, steps = 0.0, 0
    if deflected:
        plan = _deflected_part(model, node, settings, limit_s)
        wait_s, steps = plan.ttft_s, plan.schedule.steps
    if tokens > deflected:
        chunk = _unplanned_chunk(node, settings)
        plan = _in_equal_chunks(model, decodes, kv_tokens + deflected + decodes * steps, tokens - deflected, chunk)
        wait_s, steps = wait_s + plan.ttft_s, steps + plan.schedule.steps
    return Ahead(wait_s, (decodes + prompts, kv_tokens + tokens + decodes * steps))


def ahead_floor_s(model: StepLatencyModel, node: NodeState, settings: DecisionSettings) -> float:
    """Bound `ahead_of_prompt`'s wait from below, for much less: no growth, no progress, one step for deflected prompts."""
    _, tokens, deflected = node.prefill_ahead
    (decodes, kv_tokens), latency_s = node.decode_load, model.latency_s
    chunk = _unplanned_chunk(node, settings) - decodes
    full, rest = divmod(tokens - deflected, chunk)
    floor_s = latency_s(decodes, kv_tokens, rest, 0) if rest else 0.0
    if full:
        floor_s += full * latency_s(decodes, kv_tokens, chunk, 0)
    if deflected:
        floor_s += latency_s(decodes, kv_tokens, deflected, 0)
    return floor_s * _SAFE


def _deflected_part(model: StepLatencyModel, node: NodeState, settings: DecisionSettings, limit_s: float) -> Planned:
    """Plan the deflected tokens safely if that is possible, else in the smallest chunks."""
    (decodes, kv_tokens), deflected = node.decode_load, node.prefill_ahead[2]
    candidates = settings.chunk_candidates_tokens
    plan = build_schedule(
        model,
        running_decodes=decodes,
        kv_tokens=kv_tokens,
        prompt_tokens=deflected,
        candidates=candidates,
        limit_s=limit_s,
    )
    return plan or _in_equal_chunks(model, decodes, kv_tokens, deflected, max(candidates[-1], decodes + _LEAST_PREFILL_TOKENS))


def _in_equal_chunks(model: StepLatencyModel, decodes: int, kv_tokens: int, tokens: int, chunk: int) -> Planned:
    plan = build_schedule(
        model, running_decodes=decodes, kv_tokens=kv_tokens, prompt_tokens=tokens, candidates=(chunk,), limit_s=inf
    )
    assert plan is not None  # nothing bounds its steps
    return plan


def _unplanned_chunk(node: NodeState, settings: DecisionSettings) -> int:
    """Total tokens of a step that carries unplanned prefill; the engine bounds it on nodes that only decode."""
    chunk = node.token_budget_tokens
    if node.role is Role.DECODE:
        chunk = min(chunk, settings.unplanned_chunk_tokens)
    return max(chunk, node.decode_load[0] + _LEAST_PREFILL_TOKENS)
