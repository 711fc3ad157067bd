"""Feeds the deadline governor with what the scheduler does, and asks it how much prefill a step may carry."""

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import msgspec

from vllm_kairos.core.governor import NO_CHUNKS, Flight, Governor, Moment, Objective, Queue, StepBound, with_chunk
from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.counts_writer import CountsWriter
from vllm_kairos.engine.governor_metrics import governor_counts_path
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.engine.steps_in_flight import StepsInFlight
from vllm_kairos.errors import ConfigError, WireError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.wire.objectives import read_objectives

_STEPS_PER_LOOK = 256
_MOST_UNTOLD = 8
_NO_DEADLINE = Objective()
_NOBODY: dict[str, Objective] = {}

logger = compat.init_logger("vllm.kairos.governor")


class _Step(msgspec.Struct):  # one is made in every step: takes a fraction of what a dataclass does
    scheduled_s: float
    follows: bool  # it has requests in common with the step before
    kv_tokens: int  # before it, where the same requests decode on
    flight: Flight | None = None  # None: the governor has not been told yet


class StepGovernor:
    """Called around schedule() and update_from_output(), in the scheduler's thread.

    A step in which the same requests decode on is only counted: the governor is told of some of them at once, at the
    latest when it is asked. It is told of any other step at once.
    """

    def __init__(
        self,
        scheduler: Any,
        governor: Governor,
        *,
        objective: Objective,
        tightest_slo_s: float,
        clock: Callable[[], float] = time.perf_counter,
        wall_clock: Callable[[], float] = time.time,
        counts_path: Path | None = None,
    ) -> None:
        self._scheduler, self._governor, self._clock, self._wall_clock = scheduler, governor, clock, wall_clock
        self._objective, self._tightest_slo_s = objective, tightest_slo_s
        self._own: dict[str, Objective] = {}  # of requests that bring one
        self._prefilling: dict[str, Any] = {}  # running, before the step being scheduled
        self._head: str | None = None  # the first to wait for prefill, in the step being scheduled
        self._waited = False  # as far as the governor knows
        self._last_ids: dict[str, int] = {}
        self._kv_tokens = 0  # of those in the last step, after it
        self._decodes = -1  # how many they are, where all of them decode and nobody else does
        self._in_flight: StepsInFlight[_Step] = StepsInFlight()
        self._untold = 0  # steps that the governor has not been told of
        self._last_untold: tuple[_Step, float] | None = None  # of those, the last that has ended, and what it took
        self._ended_s = clock()
        self._writer = None if counts_path is None else CountsWriter(governor.counts, counts_path)
        self._steps = 0

    @classmethod
    def create(cls, scheduler: Any, settings: EngineSettings) -> "StepGovernor | None":
        """A governor as the settings ask, or None; ConfigError or ProfileError when it cannot do what they say."""
        chosen = settings.governor
        if chosen is None:
            return None
        if not scheduler.scheduler_config.enable_chunked_prefill:
            raise ConfigError("additional_config.kairos.governor needs chunked prefill, which is off")
        model = load_profile(resolve_profile(chosen.profile)).step_model
        return cls(
            scheduler,
            Governor(model, chosen.sizing),
            objective=chosen.sizing.objective,
            tightest_slo_s=chosen.tightest_slo_s,
            counts_path=governor_counts_path(scheduler.vllm_config, chosen, compat.dp_rank(scheduler)),
        )

    def close(self) -> None:
        """Stop telling the API server what is counted."""
        if self._writer is not None:
            self._writer.close()

    def adopt(self, request: Any) -> None:
        """Take note of a new request's own objectives; malformed ones are ignored."""
        params = request.sampling_params
        try:
            own = read_objectives(params.extra_args) if params is not None else None
        except WireError as error:
            logger.warning("Request %s runs with the server's objectives: %s", request.request_id, error)
            return
        if own is not None:
            self._own[request.request_id] = Objective(*(value and max(value, self._tightest_slo_s) for value in own))

    def begin(self, running_prefills: Sequence[Any]) -> None:
        """A step is about to be scheduled; `running_prefills` are between two chunks."""
        if self._head is None and self._waited:
            self._waited = False
            self._governor.nobody_waits()
        self._head = None
        if ended := compat_steps.ended_requests(self._scheduler):
            self._catch_up()
            for request_id in ended:
                self._governor.deadlines.forget(request_id)
                self._own.pop(request_id, None)
        if running_prefills or self._prefilling:
            self._prefilling = {request.request_id: request for request in running_prefills}

    def bound(self, arrivals: Sequence[Any], head: Any, prompts: int) -> StepBound | None:
        """What bounds the prefill of that step, in which `arrivals`, too, get their next token; None: no deadline does.

        `head` is the first request that waits for prefill, of `prompts`.
        """
        if self._untold:
            self._catch_up()
        self._head, self._waited = head.request_id, True
        last_ids, kv_tokens = self._last_ids, self._kv_tokens
        for request_id, request in self._prefilling.items():
            if request_id in last_ids:
                kv_tokens -= request.num_computed_tokens
        for request in arrivals:
            kv_tokens += request.num_tokens
        decodes = len(self._scheduler.running) - len(self._prefilling) + len(arrivals)
        now_s = self._clock()
        queue = self._queue(head, prompts, decodes, now_s) if self._governor.serves_ttft else None
        return self._governor.bound(now_s, decodes, max(0, kv_tokens), self._head, queue)

    def _queue(self, head: Any, prompts: int, decodes: int, now_s: float) -> Queue | None:
        """What waits, while the first of it waits for its first token. Seam: `arrival_time` is wall-clock time (0.30-0.32)."""
        if head.num_output_tokens:
            return None
        done_tokens = head.num_computed_tokens or compat.cached_tokens(self._scheduler, head)
        whole = with_chunk(NO_CHUNKS, done_tokens, head.num_tokens - done_tokens)
        most_tokens = max(1, self._scheduler.max_num_scheduled_tokens - decodes)
        return Queue(prompts, whole, now_s - (self._wall_clock() - head.arrival_time), most_tokens)

    def step_scheduled(self, output: Any) -> None:
        """A step leaves for the workers."""
        ids = output.num_scheduled_tokens
        if not ids:
            return
        now_s, same = self._clock(), self._is_same(output)
        if same and self._decodes == output.total_num_scheduled_tokens and not self._prefilling:
            step = _Step(now_s, True, self._kv_tokens)
            self._untold += 1
            self._kv_tokens += self._decodes
        else:
            if self._untold:
                self._catch_up()
            step = _Step(now_s, same or not ids.keys().isdisjoint(self._last_ids), self._kv_tokens)
            step.flight = self._tell(output, now_s, same)
        self._last_ids = ids
        self._in_flight.add(output, step)

    def step_finished(self, output: Any) -> None:
        """A step's output was taken in."""
        now_s = self._clock()
        step = self._in_flight.take(output)
        if step is None:
            return
        # As StepSpan.actual_s has it: idle time before the step counts where the engine had no reason to be idle.
        took_s = now_s - (self._ended_s if step.follows or step.scheduled_s < self._ended_s else step.scheduled_s)
        self._ended_s = now_s
        if step.flight is not None:
            self._governor.finished(step.flight, now_s, took_s)
        else:
            self._last_untold = (step, took_s)
            if self._untold >= _MOST_UNTOLD:
                self._catch_up()
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0 and (drift := self._governor.new_drift()) is not None:
            advice = "consider a new one, as kairos profile --from-log fits to recorded steps"
            logger.warning("Steps take %.2f times what the governor's profile predicts; %s.", drift, advice)

    def preempted(self, request_id: str) -> None:
        """`request_id` lost its place."""
        self._catch_up()
        self._last_ids = {}
        self._governor.deadlines.forget(request_id)

    def _is_same(self, output: Any) -> bool:
        """Whether a step serves exactly who the last one did, all that run, and without drafts that may be refused."""
        count = len(output.num_scheduled_tokens)
        everybody = count == len(self._last_ids) == len(self._scheduler.running)
        return everybody and not self._scheduler.num_spec_tokens and compat_steps.nobody_joins_or_leaves(output)

    def _tell(self, output: Any, now_s: float, same: bool) -> Flight:
        """Tell the governor of a step; `same`: it serves who the last one did."""
        ids, governor = output.num_scheduled_tokens, self._governor
        if self._head in ids:
            governor.head_served(now_s)
        joined = _NOBODY
        unfinished: AbstractSet[str] = self._prefilling.keys()
        chunks = compat_steps.read_same_chunks(output, self._prefilling) if same else None
        if chunks is not None:
            decodes, kv_tokens = len(ids) - len(unfinished), self._kv_tokens
        else:
            entered = compat_steps.entered(output, unfinished)
            load = compat_steps.read_load(self._scheduler, output, entered)
            decodes, kv_tokens, chunks, unfinished = load.running_decodes, load.kv_tokens, load.chunks, load.unfinished
            joined = {name: self._objective_of(name) for name in entered if name not in unfinished}
        flight = governor.scheduled(now_s, decodes, kv_tokens, chunks)
        if not governor.deadlines.go_on(joined, len(ids) - len(unfinished), flight):
            served = ids.keys() - unfinished
            governor.deadlines.serve(served, flight, self._objective_of, self._still_decodes)
        self._kv_tokens = kv_tokens + output.total_num_scheduled_tokens
        self._decodes = -1 if unfinished else len(ids)
        return flight

    def _catch_up(self) -> None:
        """Tell the governor of the steps since, in which the same requests decoded on.

        Of those that have ended only the last is told: the others' tokens have no deadline any more, and for the
        correction one of some steps is enough.
        """
        if not self._untold:
            return
        governor, decodes = self._governor, self._decodes
        waiting = [step for step in self._in_flight.notes() if step.flight is None]
        ended, self._untold = self._untold - len(waiting), 0
        if ended and self._last_untold is not None:
            step, took_s = self._last_untold
            governor.ran(decodes, step.kv_tokens, took_s)
            governor.deadlines.go_on(_NOBODY, decodes, Moment(self._ended_s), steps=ended)
        for step in waiting:
            begin_s = max(step.scheduled_s, self._ended_s)
            step.flight = governor.scheduled(begin_s, decodes, step.kv_tokens, NO_CHUNKS)
            governor.deadlines.go_on(_NOBODY, decodes, step.flight)

    def _objective_of(self, request_id: str) -> Objective:
        """The objective of a request that begins to decode; none where the token it gets is its last."""
        request = self._scheduler.requests[request_id]
        if request.num_output_tokens + 1 >= request.max_tokens:
            return _NO_DEADLINE
        return self._own.get(request_id, self._objective)

    def _still_decodes(self, request_id: str) -> bool:
        request = self._scheduler.requests.get(request_id)
        return request is not None and compat.is_running(request)
