"""What the step recorder reads of a scheduler and its outputs. Read against vLLM 0.30.0, 0.31.0 and 0.32.0."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.engine.compat import state_of


class StepLoad(NamedTuple):
    """What one step carries. `kv_tokens` counts what all its sequences hold before it, prompts too."""

    running_decodes: int
    kv_tokens: int
    chunks: PrefillTotals
    deflected_tokens: int
    unfinished: frozenset[str]  # prompts that will not be through after it, so that no token comes out for them


NO_CHUNKS = PrefillTotals(0, 0, 0, 0.0)
_NONE: frozenset[str] = frozenset()


def read_load(scheduler: Any, output: Any, unfinished: Iterable[str]) -> StepLoad:
    """Read a step right after schedule(), which has advanced `num_computed_tokens` by the step's tokens.

    `unfinished` are those of the step before. A chunk is anything but a single token behind a whole prompt
    (and its drafts). Most steps carry none, and are read without looking at each request. Seam: the outputs'
    `num_computed_tokens` are those before the step; requests in `scheduled_new_reqs`, `resumed_req_ids`
    and between two chunks are the only ones that prefill, unless failed KV loads threw some back (0.30-0.32).
    """
    scheduled, cached, new = output.num_scheduled_tokens, output.scheduled_cached_reqs, output.scheduled_new_reqs
    kv_tokens = sum(cached.num_computed_tokens)
    count, total = len(scheduled), output.total_num_scheduled_tokens
    suspects = [request_id for request_id in unfinished if request_id in scheduled] if unfinished else []
    if new:
        kv_tokens += sum(request.num_computed_tokens for request in new)
        suspects += [request.req_id for request in new]
    if cached.resumed_req_ids:
        suspects += cached.resumed_req_ids
    if not suspects and total == count:
        return StepLoad(count, kv_tokens, NO_CHUNKS, 0, _NONE)
    found = _chunks(scheduler, scheduled, suspects)
    drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
    if total != count - len(found) + drafts + sum(tokens for _, _, tokens in found):
        found = _chunks(scheduler, scheduled, scheduled)
    return _load(kv_tokens, count, found)


def _chunks(scheduler: Any, scheduled: Mapping[str, int], request_ids: Iterable[str]) -> list[tuple[Any, int, int]]:
    """The prompt chunks among `request_ids`: request, tokens computed before, tokens."""
    width, found = 1 + scheduler.num_spec_tokens, []
    for request_id in request_ids:
        request, tokens = scheduler.requests[request_id], scheduled[request_id]
        before = request.num_computed_tokens - tokens
        if tokens > width or before < request.num_prompt_tokens - 1:
            found.append((request, before, tokens))
    return found


def _load(kv_tokens: int, count: int, found: list[tuple[Any, int, int]]) -> StepLoad:
    tokens = done_tokens = deflected_tokens = 0
    work = 0.0
    unfinished = []
    for request, before, chunk in found:
        tokens += chunk
        done_tokens += before
        work += chunk * before + chunk * chunk * 0.5
        if (state := state_of(request)) is not None and state.planned:
            deflected_tokens += chunk
        if request.is_prefill_chunk:
            unfinished.append(request.request_id)
    chunks = PrefillTotals(1, tokens, done_tokens, work) if found else NO_CHUNKS
    return StepLoad(count - len(found), kv_tokens, chunks, deflected_tokens, frozenset(unfinished))


def goes_on(scheduler: Any, output: Any) -> bool:
    """Whether a step runs all running requests, and none that was not running before.

    Two such steps in a row with as many requests are of the same ones. Seam: who begins to run is in
    `scheduled_new_reqs` or `resumed_req_ids` (0.30-0.32).
    """
    if output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids:
        return False
    return runs_all(scheduler, output)


def runs_all(scheduler: Any, output: Any) -> bool:
    """Whether a step, read right after schedule(), has tokens for all running requests."""
    return len(output.num_scheduled_tokens) == len(scheduler.running)


def output_count(results: Mapping[int, Any]) -> int:
    """How many requests update_from_output() answered."""
    return sum(len(each.outputs) for each in results.values())


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
