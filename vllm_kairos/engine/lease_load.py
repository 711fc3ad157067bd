"""What a scheduler has and is about to have, as leases reckon with it."""

from collections.abc import Iterable
from itertools import chain
from typing import Any

from vllm_kairos.core.lease import Load, OutputLengths
from vllm_kairos.engine import compat
from vllm_kairos.engine.deflection import is_deflected

_LENGTH_STEP_TOKENS = 64  # how finely what a decode has produced is told apart when its length is estimated


def read_load(scheduler: Any, lengths: OutputLengths) -> Load:
    """Read it between two steps, in the scheduler's own thread."""
    sums = _Sums(scheduler, lengths)
    sums.running(scheduler.running)
    for request in _waiting(scheduler):
        (sums.incoming if pulls_kv(scheduler, request) else sums.queued)(request)
    return sums.load()


def pulls_kv(scheduler: Any, request: Any) -> bool:
    """Whether a waiting request's prompt is computed elsewhere."""
    if is_deflected(request):
        return False
    return compat.is_loading_kv(scheduler, request) or compat.will_load_kv(scheduler, request)


class _Sums:
    def __init__(self, scheduler: Any, lengths: OutputLengths) -> None:
        self._scheduler, self._lengths, self._block_tokens = scheduler, lengths, int(scheduler.block_size)
        self._decodes = self._kv_tokens = self._growth_tokens = self._needed_blocks = 0
        self._incoming = self._incoming_tokens = self._queued = self._queued_tokens = 0
        self._left: dict[int, int] = {}  # output tokens still to come, by what has come

    def running(self, requests: Iterable[Any]) -> None:
        """Those that run, hundreds of them, and most past their prompts."""
        left = self._left
        decodes = kv_tokens = growth_tokens = 0
        for request in requests:
            if request.is_prefill_chunk:
                self.queued(request)
                continue
            produced = request.num_output_tokens
            more = left.get(produced // _LENGTH_STEP_TOKENS)
            if more is None:
                more = self._more(produced)
            most = request.max_tokens - produced
            growth_tokens += more if more < most else most
            kv_tokens += request.num_computed_tokens
            decodes += 1
        self._decodes, self._kv_tokens, self._growth_tokens = decodes, kv_tokens, max(0, growth_tokens)

    def incoming(self, request: Any) -> None:
        """One whose KV is pulled, or will be."""
        self._incoming += 1
        self._incoming_tokens += request.num_tokens
        self._reserve(request)

    def queued(self, request: Any) -> None:
        """One whose prompt is computed here."""
        self._queued += 1
        self._queued_tokens += max(0, request.num_tokens - request.num_computed_tokens)
        self._reserve(request)

    def load(self) -> Load:
        """What they add up to."""
        scheduler = self._scheduler
        taken = self._decodes + self._incoming + self._queued
        return Load(
            running_decodes=self._decodes,
            kv_tokens=self._kv_tokens,
            incoming_requests=self._incoming,
            incoming_kv_tokens=self._incoming_tokens,
            queued_prompts=self._queued,
            queued_prefill_tokens=self._queued_tokens,
            free_kv_blocks=compat.free_kv_blocks(scheduler),
            needed_kv_blocks=self._needed_blocks + self._blocks_for(self._growth_tokens),
            block_size_tokens=self._block_tokens,
            free_slots=max(0, scheduler.max_num_running_reqs - taken),
            output_tokens=self._lengths.expected(scheduler.max_model_len),
        )

    def _reserve(self, request: Any) -> None:
        produced = request.num_output_tokens
        whole = request.num_tokens - produced + self._lengths.expected(request.max_tokens, produced)
        held = self._blocks_for(request.num_computed_tokens)
        self._needed_blocks += max(0, self._blocks_for(whole) - held)

    def _more(self, produced: int) -> int:
        step = produced // _LENGTH_STEP_TOKENS
        then = step * _LENGTH_STEP_TOKENS
        self._left[step] = self._lengths.expected(self._scheduler.max_model_len, then) - then
        return self._left[step]

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)


def _waiting(scheduler: Any) -> Iterable[Any]:
    return chain.from_iterable(queue for queue in compat.waiting_queues(scheduler) if queue)
