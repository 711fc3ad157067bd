"""What the step recorder reads of a scheduler and its outputs. Read against vLLM 0.30.0, 0.31.0 and 0.32.0."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.engine.compat import state_of
from vllm_kairos.steps.recorded import NO_CHUNKS, StepLoad

_NONE: frozenset[str] = frozenset()


def entered(output: Any, unfinished: AbstractSet[str]) -> AbstractSet[str]:
    """The requests of a step that begin to run in it, or were `unfinished` prompts before it.

    Seam: who begins to run is in `scheduled_new_reqs` or `resumed_req_ids` (0.30-0.32).
    """
    new, resumed = output.scheduled_new_reqs, output.scheduled_cached_reqs.resumed_req_ids
    if not (new or resumed or unfinished):
        return _NONE
    scheduled = output.num_scheduled_tokens
    found = {request_id for request_id in unfinished if request_id in scheduled}
    for request in new:
        found.add(request.req_id)
    return found | resumed if resumed else found


def nobody_joins_or_leaves(output: Any) -> bool:
    """Whether nobody begins to run in a step or has ended since the last one. Seam: as `entered`."""
    return not (output.finished_req_ids or output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids)


def read_load(scheduler: Any, output: Any, suspects: AbstractSet[str]) -> StepLoad:
    """Read a step right after schedule(), which has advanced `num_computed_tokens` by the step's tokens.

    `suspects` are those who `entered`. A chunk is anything but the last single token behind a whole prompt (and its
    drafts): a preempted request computes those before it anew. Most steps carry none, and are read without looking at
    each request. Seam: the outputs' `num_computed_tokens` are those before the step; suspects are the only ones that
    prefill, unless failed KV loads threw some back (0.30-0.32).
    """
    scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    kv_tokens = sum(output.scheduled_cached_reqs.num_computed_tokens)
    count, total = len(scheduled), output.total_num_scheduled_tokens
    for request in output.scheduled_new_reqs:
        kv_tokens += request.num_computed_tokens
    if not suspects and total == count:
        return StepLoad(count, kv_tokens, NO_CHUNKS, 0, _NONE)
    load = _load(scheduler, scheduled, kv_tokens, suspects)
    if drafts:
        total -= sum(map(len, drafts.values()))
    if total == load.running_decodes + load.chunks.tokens:
        return load
    return _load(scheduler, scheduled, kv_tokens, scheduled)


def read_same_chunks(output: Any, prefilling: Mapping[str, Any]) -> PrefillTotals | None:
    """Read the prefill of a step that serves whom the last one did, right after schedule().

    None where that takes a look at who they are: one of the `prefilling` has come to its prompt's end, or another prefills.
    """
    scheduled = output.num_scheduled_tokens
    tokens, done_tokens, work = 0, 0, 0.0
    for request_id, request in prefilling.items():
        chunk = scheduled[request_id]
        before = request.num_computed_tokens - chunk
        tokens += chunk
        done_tokens += before
        work += chunk * (before + chunk * 0.5)
        if not request.is_prefill_chunk:
            return None
    if output.total_num_scheduled_tokens != len(scheduled) - len(prefilling) + tokens:
        return None
    return PrefillTotals(1, tokens, done_tokens, work) if tokens else NO_CHUNKS


def _load(scheduler: Any, scheduled: Mapping[str, int], kv_tokens: int, suspects: Iterable[str]) -> StepLoad:
    """The step's load if only `suspects` prefill."""
    width, requests = 1 + scheduler.num_spec_tokens, scheduler.requests
    decodes, tokens, done_tokens, deflected_tokens, work = len(scheduled), 0, 0, 0, 0.0
    unfinished = []
    for request_id in suspects:
        request, chunk = requests[request_id], scheduled[request_id]
        before = request.num_computed_tokens - chunk
        if chunk <= width and before >= request.num_prompt_tokens - 1 and not request.is_prefill_chunk:
            continue
        decodes -= 1
        tokens += chunk
        done_tokens += before
        work += chunk * before + chunk * chunk * 0.5
        if (state := state_of(request)) is not None and state.planned:
            deflected_tokens += chunk
        if request.is_prefill_chunk:
            unfinished.append(request_id)
    chunks = PrefillTotals(1, tokens, done_tokens, work) if tokens else NO_CHUNKS
    return StepLoad(decodes, kv_tokens, chunks, deflected_tokens, frozenset(unfinished) if unfinished else _NONE)


def still_unfinished(scheduler: Any, output: Any, before: AbstractSet[str], load: StepLoad) -> AbstractSet[str]:
    """The prompts between two chunks after a step: its own, and of those `before` it the ones that it passed over."""
    if not before:
        return load.unfinished
    scheduled, requests = output.num_scheduled_tokens, scheduler.requests
    passed_over = [request_id for request_id in before if request_id not in scheduled and request_id in requests]
    return load.unfinished.union(passed_over) if passed_over else load.unfinished


def passed_over(scheduler: Any, output: Any) -> int:
    """How many running requests a step, read right after schedule(), has no tokens for."""
    return len(scheduler.running) - len(output.num_scheduled_tokens)


def output_count(results: Mapping[int, Any]) -> int:
    """How many requests update_from_output() answered."""
    count = 0
    for each in results.values():  # of one client mostly, where sum() takes longer
        count += len(each.outputs)
    return count


def requests_with_tokens(results: Mapping[int, Any]) -> set[str]:
    """The requests that update_from_output() gave tokens to, whoever their client is."""
    outputs = chain.from_iterable(each.outputs for each in results.values())
    return {output.request_id for output in outputs if output.new_token_ids}


def ended_requests(scheduler: Any) -> Iterable[str]:
    """Those that ended since the last schedule(). Seam: `finished_req_ids` is emptied by it (0.30-0.32)."""
    ended: Iterable[str] = scheduler.finished_req_ids
    return ended


def instance_name(vllm_config: Any) -> str:
    """What tells this server from others on the machine. Seam: `instance_id` goes to the engine core with the configuration."""
    return str(vllm_config.instance_id)
