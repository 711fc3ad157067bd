"""An engine as its node-state message would show it, between steps or amid a run of them."""

from math import inf
from typing import TYPE_CHECKING

from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine


def node_state(engine: "Engine", now_s: float, *, seen_until_s: float = inf) -> NodeState:
    """Read `engine`; chunks of the step under way count as computed, as in vLLM.

    Of the queue it shows what was submitted by `seen_until_s`.
    """
    spec, decodes, leap = engine.spec, engine.decodes, engine.leap
    done = leap.steps_by(now_s) if leap is not None and leap.steps > 1 else 0
    count = len(decodes)
    queued, total, deflected, remote_count, remote_tokens = _queues(engine, seen_until_s)
    return NodeState(
        node_id=spec.name,
        role=spec.role,
        running_decodes=count,
        kv_tokens=decodes.kv_tokens + done * count,
        queued_prompt_tokens=queued,
        queued_prefill_tokens=total,
        token_budget_tokens=spec.token_budget_tokens,
        max_running_requests=spec.max_running_requests,
        block_size_tokens=spec.block_size_tokens,
        free_kv_blocks=engine.free_blocks - (decodes.new_blocks(done) if done else 0),
        total_kv_blocks=spec.kv_blocks,
        kv_bytes_per_token=spec.kv_bytes_per_token,
        remote_kv_requests=remote_count,
        remote_kv_tokens=remote_tokens,
        deflected_prefills=len(deflected),
        deflected_tokens_left=sum(deflected),
        observed_at_s=now_s,
    )


def _queues(engine: "Engine", seen_until_s: float) -> tuple[tuple[int, ...], int, list[int], int, int]:
    """Prompts ahead of a new one with their total, deflected tokens left, and what waits for remote KV."""
    if not (engine.prefills or engine.waiting or engine.loading or engine.arrived or engine.unseen):
        return (), 0, [], 0, 0  # most of the time
    running_left = sum(job.tokens_left for job in engine.prefills)
    seen = [job for job in (*engine.waiting, *engine.unseen) if job.submitted_s <= seen_until_s]
    waiting = [job for job in seen if not job.pulls_kv]
    lefts = [job.tokens_left for job in waiting]
    queued = (running_left, *lefts) if running_left else tuple(lefts)
    remote = [*engine.loading, *engine.arrived, *(job for job in seen if job.pulls_kv)]
    deflected = [left for job in (*engine.prefills, *waiting) if job.deflected and (left := _left(job))]
    return queued, running_left + sum(lefts), deflected, len(remote), sum(job.tokens for job in remote)


def _left(job: Job) -> int:
    """Prompt tokens that a deflected job has yet to compute for the first time."""
    return job.tokens_left if job.produced_tokens == 0 else 0
