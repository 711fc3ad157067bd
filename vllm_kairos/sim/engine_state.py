"""An engine as its node-state message would show it, between steps or amid a run of them."""

from typing import TYPE_CHECKING

from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine


def node_state(engine: "Engine", now_s: float) -> NodeState:
    """Read `engine`; chunks of the step under way count as computed, as in vLLM."""
    spec, decodes, leap = engine.spec, engine.decodes, engine.leap
    done = leap.steps_by(now_s) if leap is not None else 0
    running_left = sum(job.tokens_left for job in engine.prefills)
    waiting = [job for job in engine.waiting if not job.pulls_kv]
    queued = tuple(job.tokens_left for job in waiting)
    remote = [*engine.loading, *engine.arrived, *(job for job in engine.waiting if job.pulls_kv)]
    deflected = [left for job in (*engine.prefills, *waiting) if job.deflected and (left := _left(job))]
    return NodeState(
        node_id=spec.name,
        role=spec.role,
        running_decodes=len(decodes),
        kv_tokens=decodes.kv_tokens + done * len(decodes),
        queued_prompt_tokens=(running_left, *queued) if running_left else queued,
        queued_prefill_tokens=running_left + sum(queued),
        token_budget_tokens=spec.token_budget_tokens,
        max_running_requests=spec.max_running_requests,
        block_size_tokens=spec.block_size_tokens,
        free_kv_blocks=engine.free_blocks - decodes.new_blocks(done),
        total_kv_blocks=spec.kv_blocks,
        kv_bytes_per_token=spec.kv_bytes_per_token,
        remote_kv_requests=len(remote),
        remote_kv_tokens=sum(job.request.prompt_tokens for job in remote),
        deflected_prefills=len(deflected),
        deflected_tokens_left=sum(deflected),
        observed_at_s=now_s,
    )


def _left(job: Job) -> int:
    """Prompt tokens that a deflected job has yet to compute for the first time."""
    return job.tokens_left if job.produced_tokens == 0 else 0
