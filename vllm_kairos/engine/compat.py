"""Everything we rely on inside vLLM and NIXL, and the only engine module that names them.

Read against vLLM 0.30.0, 0.31.0 and 0.32.0 (installed) and 0.33 (source). Each private seam is a
function or class whose docstring names it; tests/engine/test_compat.py fails when a new vLLM moves one.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.nixl import NixlConnector
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.request import RequestStatus

from vllm_kairos.engine.version import check_version

check_version(vllm.__version__)

VLLM_VERSION: str = vllm.__version__
HAS_LIMIT_HOOK: bool = hasattr(Scheduler, "limit_new_tokens")
"""Whether this vLLM carries patches/0001: then the seams that cap a request are not used."""

_STATE_ATTRIBUTE = "kairos_schedule"

__all__ = ["HAS_LIMIT_HOOK", "VLLM_VERSION", "NixlConnector", "SchedulerBase", "SupportsHMA", "init_logger"]


class SchedulerBase(AsyncScheduler):
    """vLLM's scheduler of the configured mode.

    Seam: vLLM turns async scheduling on by default and uses a custom class in both modes, so a
    class for both must be an AsyncScheduler. AsyncScheduler overrides `_update_after_schedule` and
    `_update_request_with_output` (0.30-0.33); with async scheduling off the plain Scheduler's take
    their place on the instance, as vLLM itself would have used that class. (On the instance, because
    the second one is called for every request in every step.)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not self._runs_async():
            for name in ("_update_after_schedule", "_update_request_with_output"):
                setattr(self, name, MethodType(getattr(Scheduler, name), self))

    def _runs_async(self) -> bool:
        return bool(self.scheduler_config.async_scheduling)


def state_of(request: Any) -> Any:
    """Our state on `request`, or None. Seam: Request is a plain object that takes attributes."""
    return getattr(request, _STATE_ATTRIBUTE, None)


def attach_state(request: Any, state: Any) -> None:
    """Hang our state on `request`; it dies with it."""
    setattr(request, _STATE_ATTRIBUTE, state)


def is_running(request: Any) -> bool:
    """Whether `request` is in the running list."""
    return bool(request.status == RequestStatus.RUNNING)


def is_loading_kv(scheduler: Any, request: Any) -> bool:
    """Whether `request` still waits for remote KV. Seam: `finished_recving_kv_req_ids` (0.30-0.33)."""
    loading = request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
    return bool(loading and request.request_id not in scheduler.finished_recving_kv_req_ids)


def has_arrived_kv(scheduler: Any, request: Any) -> bool:
    """Whether `request` waits with KV blocks it can run on at once."""
    if request.status == RequestStatus.WAITING_FOR_STREAMING_REQ or is_loading_kv(scheduler, request):
        return False
    return bool(request.num_computed_tokens > 0 or request.status == RequestStatus.WAITING_FOR_REMOTE_KVS)


def is_between_inputs(request: Any) -> bool:
    """Whether a streaming-input session waits for its next input."""
    return bool(request.status == RequestStatus.WAITING_FOR_STREAMING_REQ)


def will_load_kv(scheduler: Any, request: Any) -> bool:
    """Whether vLLM's connector will pull this waiting request's KV instead of computing it."""
    params = request.kv_transfer_params
    return bool(scheduler.connector is not None and params and params.get("do_remote_prefill"))


def adapters_in_use(scheduler: Any) -> set[int] | None:
    """The LoRA adapters of running requests; None where there is no limit on them. Seam: `lora_config` (0.30-0.33)."""
    if not scheduler.lora_config:
        return None
    return {request.lora_request.lora_int_id for request in scheduler.running if request.lora_request}


def is_passed_over(scheduler: Any, request: Any, adapters: set[int] | None) -> bool:
    """Whether vLLM passes over this waiting request in the next step, and goes on with those behind it.

    `adapters` are those in use. Seams: a request whose grammar still compiles is in
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR; one whose adapter would be one too many waits (0.30-0.33).
    """
    if request.status == RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        grammar = request.structured_output_request and request.structured_output_request.grammar
        return grammar is None or isinstance(grammar, Exception)
    if adapters is None or request.lora_request is None or request.lora_request.lora_int_id in adapters:
        return False
    return len(adapters) >= int(scheduler.lora_config.max_loras)


def cached_tokens(scheduler: Any, request: Any) -> int:
    """How many of a waiting prompt's tokens the prefix cache holds.

    Seams: `prefix_cache_lookup_enabled`, and find_longest_cache_hit() of the cache manager's coordinator,
    which only looks (0.30-0.33).
    """
    manager = scheduler.kv_cache_manager
    if not manager.prefix_cache_lookup_enabled(request):
        return 0
    return int(manager.coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)[1])


def waiting_queues(scheduler: Any) -> tuple[Any, ...]:
    """The waiting queues in the order in which they are drained.

    Seam: `kv_holding_waiting` then `waiting` (0.31-0.33); `skipped_waiting` then `waiting` (0.30).
    """
    first = scheduler.kv_holding_waiting if drains_kv_holders_first(scheduler) else scheduler.skipped_waiting
    return (first, scheduler.waiting)


def drains_kv_holders_first(scheduler: Any) -> bool:
    """Whether requests that hold KV blocks can never queue behind one that fails to get blocks (0.31 on)."""
    return hasattr(scheduler, "kv_holding_waiting")


@contextmanager
def held_out(scheduler: Any, held: Iterable[Any]) -> Iterator[None]:
    """Keep `held` out of the waiting queues for one step, then put everyone back in order.

    Seam: RequestQueue's remove_requests and add_request; `deferred_waiting` counts requests that a
    step passed over (0.31-0.33). A queue scan stops at a request that gets no tokens; one that is
    not there cannot stop it. (With the hook, one that gets no tokens does not.)
    """
    out = set() if HAS_LIMIT_HOOK else set(held)
    before = [(queue, list(queue)) for queue in waiting_queues(scheduler)] if out else []
    for queue, order in before:
        if not out.isdisjoint(order):
            queue.remove_requests(out)
    try:
        yield
    finally:
        for queue, order in before:
            if not out.isdisjoint(order):
                _restore(queue, order, out)
        if out and hasattr(scheduler, "deferred_waiting"):
            scheduler.deferred_waiting.update(out)


def _restore(queue: Any, order: list[Any], out: set[Any]) -> None:
    left = list(queue)
    known, keep = set(order), out.union(left)
    queue.remove_requests(left)
    newcomers = [request for request in left if request not in known]  # preempted in this step: they go first
    for request in newcomers + [request for request in order if request in keep]:
        queue.add_request(request)


@contextmanager
def limited_requests(scheduler: Any, limit: Callable[[Any, int, int], int], free_width: int) -> Iterator[None]:
    """Pass each request's new tokens of this step through `limit(request, computed, new)`.

    Seam: schedule() calls `_reserve_prefill_lookahead(request, computed, new)` once for every request
    that it is about to schedule, running or waiting, and takes the result (0.30-0.33); it reserves
    nothing without a drafter's look-ahead. Installed on the instance and only for steps that need
    it, so that other steps cost nothing. Running requests past their prompt that ask for at most
    `free_width` tokens are not asked about.
    """
    if HAS_LIMIT_HOOK:
        yield
        return
    reserve = scheduler._reserve_prefill_lookahead
    running = RequestStatus.RUNNING
    reserves_nothing = scheduler.num_prefill_lookahead == 0

    def limited(request: Any, num_computed_tokens: int, num_new_tokens: int, **extra: Any) -> Any:
        if num_new_tokens <= free_width and not request.is_prefill_chunk and request.status is running:
            if reserves_nothing and num_new_tokens > 0:
                return num_new_tokens
            return reserve(request, num_computed_tokens, num_new_tokens, **extra)
        allowed = limit(request, num_computed_tokens, num_new_tokens)
        return reserve(request, num_computed_tokens, allowed, **extra)

    scheduler._reserve_prefill_lookahead = limited
    try:
        yield
    finally:
        del scheduler._reserve_prefill_lookahead


def smallest_chunk(scheduler: Any, request: Any, computed_tokens: int) -> int:
    """The fewest tokens a chunk starting at `computed_tokens` must hold to make progress.

    Seams: `need_mamba_block_aligned_split` ends chunks of hybrid models at state blocks of
    `cache_config.block_size` tokens; `disable_chunked_mm_input` keeps a media item in one chunk; no
    chunk may end within `num_prefill_lookahead` tokens of the prompt's end (0.30-0.33).
    """
    left = request.num_tokens - computed_tokens
    fewest = left if left <= scheduler.num_prefill_lookahead else 1
    if scheduler.need_mamba_block_aligned_split:
        block = chunk_block_tokens(scheduler)
        fewest = block - computed_tokens % block
    if scheduler.scheduler_config.disable_chunked_mm_input:
        for feature in request.mm_features:
            begin = feature.mm_position.offset
            end = begin + feature.mm_position.length
            if begin - scheduler.num_prefill_lookahead <= computed_tokens < end:
                fewest = max(fewest, end - computed_tokens)
    return fewest


def chunks_end_anywhere(scheduler: Any) -> bool:
    """Whether nothing but a prompt's end says where its chunks end: `smallest_chunk` and `chunk_block_tokens` are 1 then.

    Seams: those of these two.
    """
    aligned = scheduler.need_mamba_block_aligned_split or scheduler.num_prefill_lookahead
    return not (aligned or scheduler.scheduler_config.disable_chunked_mm_input)


def chunk_block_tokens(scheduler: Any) -> int:
    """Chunks within a prompt end at multiples of so many tokens. Seam: `need_mamba_block_aligned_split` (0.30-0.33)."""
    return int(scheduler.cache_config.block_size) if scheduler.need_mamba_block_aligned_split else 1


def must_run_whole(request: Any) -> bool:
    """Whether splitting this request's prompt would kill the engine.

    Seam: after an unfinished chunk the model runner rewinds a seeded request's generator by
    `set_offset`, which CPU generators do not have (GPUModelRunner, 0.30-0.33).
    """
    params = request.sampling_params
    return bool(params is not None and params.seed is not None and current_platform.is_cpu())


def decode_widths(scheduler: Any) -> list[int]:
    """Tokens that each running request past its prompt takes in the next step, in order; 0 if not eligible.

    Seam: `spec_token_ids` are the drafts; `next_decode_eligible_step` paces decodes under pipeline
    parallelism (0.30-0.33).
    """
    next_step = scheduler.current_step + 1
    return [
        1 + len(request.spec_token_ids) if request.next_decode_eligible_step <= next_step else 0
        for request in scheduler.running
        if not request.is_prefill_chunk
    ]


def decode_tokens(scheduler: Any, prefilling: int) -> int:
    """Total of `decode_widths`; without drafts and pipeline stages each decode takes one token."""
    if scheduler.num_spec_tokens == 0 and not scheduler.use_pp:
        return len(scheduler.running) - prefilling
    return sum(decode_widths(scheduler))


def token_budget(scheduler: Any, sequences: int) -> int:
    """Tokens that a step of `sequences` requests may hold: the scheduler's own limit, not the raw flag.

    Seam: `max_num_scheduled_tokens`, and `max_num_batched_tokens` less the drafter's extra slots per
    request (0.30-0.33).
    """
    spec = scheduler.vllm_config.speculative_config
    slots = spec.max_num_new_slots_for_drafting if spec is not None else 0
    batched = scheduler.scheduler_config.max_num_batched_tokens - slots * sequences
    return int(min(scheduler.max_num_scheduled_tokens, batched))


def can_never_fit(scheduler: Any, request: Any) -> bool:
    """Whether the prompt needs more KV blocks than the whole cache has (plain full attention only)."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    if len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec:
        return False
    return bool(-(-request.num_tokens // scheduler.block_size) > total_kv_blocks(scheduler))


def fail_request(scheduler: Any, request: Any) -> None:
    """End `request` with an error in the next update_from_output. Seam: `grammar_compile_error_reqs` (0.30-0.33)."""
    scheduler.grammar_compile_error_reqs.add(request.request_id)


def total_kv_blocks(scheduler: Any) -> int:
    """KV blocks that requests can use. Seam: one block of the pool is the null block (0.30-0.33)."""
    return int(scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1


def free_kv_blocks(scheduler: Any) -> int:
    """KV blocks free or holding only reusable prefixes."""
    return int(scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


def kv_bytes_per_token(scheduler: Any) -> int:
    """Bytes of KV cache that one token takes on all tensor-parallel ranks together."""
    total = 0.0
    for group in scheduler.kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        layers = 1 if hasattr(spec, "kv_cache_specs") else len(group.layer_names)
        total += layers * spec.page_size_bytes / spec.block_size
    return int(total * scheduler.parallel_config.tensor_parallel_size)


def device_name() -> str:
    """What the engine runs on; empty on CPUs, which vLLM does not tell apart."""
    return "" if current_platform.is_cpu() else str(current_platform.get_device_name())


def dp_rank(scheduler: Any) -> int:
    """This engine core's data-parallel rank. Seam: `data_parallel_index` (0.30-0.33)."""
    return int(scheduler.parallel_config.data_parallel_index)


def batch_shape(scheduler: Any, scheduler_output: Any) -> tuple[int, int, int, int]:
    """Decodes, KV tokens before the step, prefill tokens and tokens already computed of what prefills in it.

    Read right after schedule(), which has advanced `num_computed_tokens` by the step's tokens.
    """
    decodes = kv_tokens = prefill_tokens = done_tokens = 0
    for request_id, tokens in scheduler_output.num_scheduled_tokens.items():
        request = scheduler.requests[request_id]
        before = request.num_computed_tokens - tokens
        kv_tokens += before
        if tokens > 1 + scheduler.num_spec_tokens or before < request.num_prompt_tokens - 1:
            prefill_tokens += tokens
            done_tokens += before
        else:
            decodes += 1
    return decodes, kv_tokens, prefill_tokens, done_tokens


def has_failed_blocks(model_runner_output: Any) -> bool:
    """Whether a KV connector reported blocks that did not load in this step."""
    output = getattr(model_runner_output, "kv_connector_output", None)
    return bool(output is not None and getattr(output, "invalid_block_ids", None))


def register_connector(name: str, module_path: str, class_name: str) -> None:
    """Make `name` known to vLLM's connector factory, once. Seam: KVConnectorFactory._registry (0.30-0.33)."""
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, module_path, class_name)


def connector_class(name: str) -> Any:
    """The class of a v1 connector registered with vLLM; ValueError when there is none."""
    return KVConnectorFactory.get_connector_class_by_name(name)
