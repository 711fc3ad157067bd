"""Feeds the deadline governor with what the scheduler does, and asks it how much prefill a step may carry."""

import time
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from vllm_kairos.core.governor import NO_CHUNKS, Flight, Governor, Moment, Objective, StepBound
from vllm_kairos.engine import compat, compat_steps
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.engine.steps_in_flight import StepsInFlight
from vllm_kairos.errors import ConfigError, WireError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.wire.objectives import read_objectives

_STEPS_PER_LOOK = 256
_NO_DEADLINE = Objective()
_NOBODY: dict[str, Objective] = {}

logger = compat.init_logger("vllm.kairos.governor")


class StepGovernor:
    """Called around schedule() and update_from_output(), in the scheduler's thread.

    What it does in a step of decodes alone does not look at each of them.
    """

    def __init__(
        self,
        scheduler: Any,
        governor: Governor,
        *,
        objective: Objective,
        tightest_slo_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler, self._governor, self._clock = scheduler, governor, clock
        self._objective, self._tightest_slo_s = objective, tightest_slo_s
        self._own: dict[str, Objective] = {}  # of requests that bring one
        self._prefilling: dict[str, Any] = {}  # running, before the step being scheduled
        self._head: str | None = None  # the first to wait for prefill, in the step being scheduled
        self._last_ids: dict[str, int] = {}
        self._kv_tokens = 0  # of those in the last step, after it
        self._decodes = -1  # how many of them decode, where all do
        self._in_flight: StepsInFlight[tuple[Flight, float, bool]] = StepsInFlight()
        self._ended_s = clock()
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
        governor = Governor(model, chosen.sizing)
        return cls(scheduler, governor, objective=chosen.sizing.objective, tightest_slo_s=chosen.tightest_slo_s)

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
        self._head = None
        for request_id in compat_steps.ended_requests(self._scheduler):
            self._governor.deadlines.forget(request_id)
            self._own.pop(request_id, None)
        if running_prefills or self._prefilling:
            self._prefilling = {request.request_id: request for request in running_prefills}

    def bound(self, arrivals: Sequence[Any], head: Any) -> StepBound | None:
        """What bounds the prefill of that step, in which `arrivals`, too, get their next token; None: no deadline does.

        `head` is the first request that waits for prefill.
        """
        self._head = head.request_id
        last_ids, kv_tokens = self._last_ids, self._kv_tokens
        for request_id, request in self._prefilling.items():
            if request_id in last_ids:
                kv_tokens -= request.num_computed_tokens
        kv_tokens += sum(request.num_tokens for request in arrivals)
        decodes = len(self._scheduler.running) - len(self._prefilling) + len(arrivals)
        return self._governor.bound(self._clock(), decodes, max(0, kv_tokens), self._head)

    def step_scheduled(self, output: Any) -> None:
        """A step leaves for the workers."""
        ids = output.num_scheduled_tokens
        if not ids:
            return
        now_s, follows = self._clock(), True
        if self._decodes == len(ids) and not self._prefilling and compat_steps.only_decodes_go_on(output):
            flight = self._go_on(ids, now_s)
        else:
            follows = not ids.keys().isdisjoint(self._last_ids)
            flight = self._change(output, now_s)
        self._last_ids = ids
        self._in_flight.add(output, (flight, now_s, follows))

    def _go_on(self, ids: Mapping[str, int], now_s: float) -> Flight:
        """Everybody takes the token behind the last step's; nobody has joined or left."""
        decodes, kv_tokens = self._decodes, self._kv_tokens
        flight = self._governor.scheduled(now_s, decodes, kv_tokens, NO_CHUNKS)
        if not self._governor.deadlines.go_on(_NOBODY, decodes, flight):
            self._governor.deadlines.serve(ids.keys(), flight, self._objective_of, self._still_decodes)
        self._kv_tokens = kv_tokens + decodes
        return flight

    def _change(self, output: Any, now_s: float) -> Flight:
        """Any other step."""
        ids = output.num_scheduled_tokens
        entered = compat_steps.entered(output, self._prefilling.keys())
        load = compat_steps.read_load(self._scheduler, output, entered)
        if self._head in ids:
            self._governor.head_served(now_s)
        flight = self._governor.scheduled(now_s, load.running_decodes, load.kv_tokens, load.chunks)
        self._serve(output, entered, load.unfinished, flight)
        self._kv_tokens = load.kv_tokens + output.total_num_scheduled_tokens
        self._decodes = -1 if load.unfinished else len(ids)
        return flight

    def step_finished(self, output: Any) -> None:
        """A step's output was taken in."""
        now_s = self._clock()
        taken = self._in_flight.take(output)
        if taken is None:
            return
        flight, scheduled_s, follows = taken
        # As StepSpan.actual_s has it: idle time before the step counts where the engine had no reason to be idle.
        begun_s = self._ended_s if follows or scheduled_s < self._ended_s else scheduled_s
        self._governor.finished(flight, now_s, now_s - begun_s)
        self._ended_s = now_s
        self._steps += 1
        if self._steps % _STEPS_PER_LOOK == 0 and (drift := self._governor.new_drift()) is not None:
            advice = "consider a new one, as kairos profile --from-log fits to recorded steps"
            logger.warning("Steps take %.2f times what the governor's profile predicts; %s.", drift, advice)

    def preempted(self, request_id: str) -> None:
        """`request_id` lost its place."""
        self._decodes = -1
        self._governor.deadlines.forget(request_id)

    def _serve(self, output: Any, entered: AbstractSet[str], unfinished: AbstractSet[str], moment: Moment) -> None:
        """Tell who gets a token of the step."""
        ids, deadlines = output.num_scheduled_tokens, self._governor.deadlines
        joined = _NOBODY
        if entered:
            joined = {request_id: self._objective_of(request_id) for request_id in entered if request_id not in unfinished}
        if not deadlines.go_on(joined, len(ids) - len(unfinished), moment):
            deadlines.serve(ids.keys() - unfinished, moment, self._objective_of, self._still_decodes)

    def _objective_of(self, request_id: str) -> Objective:
        """The objective of a request that begins to decode; none where the token it gets is its last."""
        request = self._scheduler.requests[request_id]
        if request.num_output_tokens + 1 >= request.max_tokens:
            return _NO_DEADLINE
        return self._own.get(request_id, self._objective)

    def _still_decodes(self, request_id: str) -> bool:
        request = self._scheduler.requests.get(request_id)
        return request is not None and compat.is_running(request)
