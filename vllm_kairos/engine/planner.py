"""Decides, before each engine step, what its prefills may take and which of them wait."""

from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import WeakSet

from vllm_kairos.core.governor import BoundedStep, GovernorMode, Prompt
from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.core.step_plan import StepPlan, skipped_decodes
from vllm_kairos.engine import compat
from vllm_kairos.engine.deflection import adopt_schedule
from vllm_kairos.engine.governor import StepGovernor
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.errors import WireError

_SCANNED_WAITING = 256
"""Waiting requests looked at per step; a scan that gets beyond them stops at the first prefill without room."""

logger = compat.init_logger("vllm.kairos.planner")


class StepPlanner:
    """Plans the steps of one scheduler.

    Prefills are served in vLLM's own order: running ones by admission, then the waiting queues. The
    first one takes what its chi leaves beside the decodes, the next ones what is then left under the
    smallest chi so far, and those without room are held out of the step. With a governor those that its
    mode bounds get no more than the running decodes' deadlines leave.
    """

    def __init__(self, scheduler: Any, settings: EngineSettings, governor: StepGovernor | None = None) -> None:
        self._scheduler = scheduler
        self._governor = governor
        self._settings = settings
        mode = GovernorMode.STRICT if settings.governor is None else settings.governor.sizing.mode
        self._follows_schedules, self._bounds_scheduled = mode.follows_schedules, mode.bounds_scheduled
        self._chunking = bool(scheduler.scheduler_config.enable_chunked_prefill)
        self._planned: WeakSet[ScheduleState] = WeakSet()  # dies with the requests
        self._next_victim = 0
        self._recheck_running = False
        self.free_width = 1 + int(scheduler.num_spec_tokens)
        self.step: StepPlan | None = None
        self.malformed_schedules = 0
        self._prefills: list[Any] = []

    def adopt(self, request: Any) -> None:
        """Take note of a new request's schedule; a malformed one is counted and otherwise ignored."""
        try:
            state = adopt_schedule(request)
        except WireError as error:
            self.malformed_schedules += 1
            logger.warning("Request %s runs without its chunk schedule: %s", request.request_id, error)
            return
        if state is None:
            return
        if not self._chunking:
            logger.warning_once("Chunked prefill is off: chunk schedules are ignored.")
        self._planned.add(state)

    def note_failed_blocks(self) -> None:
        """Running requests may have lost computed tokens: look at each of them before the next step."""
        self._recheck_running = True

    def begin(self) -> list[Any]:
        """Plan the next step; `self.step` is None when it needs no limits. Returns the requests to hold out."""
        self.step = None
        if not self._chunking or not (self._settings.enabled or self._planned):
            return []
        running_prefills = self._running_prefills()
        arrivals, candidates = self._scan_waiting()
        self._prefills = running_prefills + candidates
        if self._governor is not None:
            self._governor.begin(running_prefills)
        decodes = compat.decode_tokens(self._scheduler, len(running_prefills))
        budget = compat.token_budget(self._scheduler, len(self._scheduler.running) + len(arrivals) + 1)
        if not self._prefills and decodes <= budget:
            return []
        return self._plan_step(budget, decodes, arrivals, bool(candidates))

    def limit(self, request: Any, computed_tokens: int, new_tokens: int) -> int:
        """Tokens of `new_tokens` that `request`, which has `computed_tokens`, gets in this step."""
        step = self.step
        if step is None or new_tokens <= 0:
            return new_tokens
        if request in step.skipped:
            return 0
        running = compat.is_running(request)
        if new_tokens <= self.free_width and _is_decode(request, running):
            return new_tokens
        step.give_back(request)
        state = self._state(request)
        new_tokens = self._in_time(step, state, request, computed_tokens, new_tokens)
        if not new_tokens:
            return 0
        if state is None:
            return self._limit_unbounded(step, request, computed_tokens, new_tokens)
        return self._limit_prefill(step, state, request, computed_tokens, new_tokens)

    def forget_grant(self, request: Any) -> None:
        """`request` is preempted: what it was granted in this step returns to the others."""
        if self.step is not None:
            self.step.give_back(request)

    def end(self) -> bool:
        """Close the step; True when a deflected prefill was scheduled to its end in it."""
        self.step = None
        ended = False
        for request in self._prefills:
            state = compat.state_of(request)
            if state is not None and state.planned and not state.ended:
                state.ended = compat.is_running(request) and not request.is_prefill_chunk
                ended = ended or state.ended
        self._prefills = []
        return ended

    def _running_prefills(self) -> list[Any]:
        running = self._scheduler.running
        prefills = [request for request in running if request.is_prefill_chunk]
        if self._recheck_running:
            rolled_back = [r for r in running if not r.is_prefill_chunk and _tokens_left(r) > 1]
            self._recheck_running = bool(rolled_back)
            prefills += rolled_back
        return prefills

    def _scan_waiting(self) -> tuple[list[Any], list[Any]]:
        """Waiting requests that only need their next token and have a slot, and those that need prefill here."""
        scheduler = self._scheduler
        arrivals, candidates = [], []
        adapters = compat.adapters_in_use(scheduler)
        for request in self._waiting():
            if compat.has_arrived_kv(scheduler, request):
                if _tokens_left(request) <= 1:
                    arrivals.append(request)
                    continue
            elif not _will_prefill_here(scheduler, request) or compat.is_passed_over(scheduler, request, adapters):
                continue
            candidates.append(request)
        free_slots = scheduler.max_num_running_reqs - len(scheduler.running)
        return arrivals[: max(0, free_slots)], candidates

    def _waiting(self) -> Iterator[Any]:
        for queue in compat.waiting_queues(self._scheduler):
            yield from islice(queue, _SCANNED_WAITING) if queue else ()

    def _unscanned(self) -> int:
        """How many wait beyond those that a step looks at."""
        return sum(max(0, len(queue) - _SCANNED_WAITING) for queue in compat.waiting_queues(self._scheduler))

    def _plan_step(self, budget: int, decodes: int, arrivals: list[Any], some_wait: bool) -> list[Any]:
        arrival_tokens = len(arrivals) * self.free_width
        forecast = StepPlan(budget_tokens=budget, decode_tokens=decodes + arrival_tokens)
        floor_for = self._overdue(forecast)
        floor_tokens = self._floor_tokens(budget, decodes) if self._may_run(floor_for) else 0
        skipped, freed = self._skip_decodes(decodes + floor_tokens - budget)
        step = self.step = StepPlan(budget_tokens=budget, decode_tokens=decodes - freed + arrival_tokens)
        step.floor_for, step.floor_tokens, step.skipped = floor_for, floor_tokens, skipped
        if self._governor is not None and (head := self._first_in_time()) is not None:
            bound = self._governor.bound(arrivals, head, len(self._prefills) + self._unscanned())
            if bound is not None:
                step.bounded = BoundedStep(bound)
                forecast.bounded = BoundedStep(bound) if some_wait else None
        # Only prefills of the waiting queues are held out.
        return self._forecast_held(forecast, floor_for, bool(arrivals)) if some_wait else []

    def _first_in_time(self) -> Any:
        """The first prefill that deadlines bound, if any."""
        if self._bounds_scheduled:
            return self._prefills[0] if self._prefills else None
        return next((request for request in self._prefills if self._is_in_time(self._state(request))), None)

    def _is_in_time(self, state: ScheduleState | None) -> bool:
        """Whether deadlines bound a prefill with such chunks."""
        return self._bounds_scheduled or state is None or not state.planned

    def _may_run(self, prefill: Any) -> bool:
        """Whether there is such a prefill, running or with a slot to start in."""
        if prefill is None:
            return False
        return compat.is_running(prefill) or len(self._scheduler.running) < self._scheduler.max_num_running_reqs

    def _floor_tokens(self, budget: int, decodes: int) -> int:
        """The floor within what decodes leave of the budget; where they leave nothing, a quarter of it."""
        spare = budget - decodes
        return min(self._settings.floor_chunk_tokens, spare if spare > 0 else max(1, budget // 4))

    def _overdue(self, forecast: StepPlan) -> Any:
        """The first prefill when it has found no room for too many steps in a row, else None."""
        for request in self._prefills:
            state = self._state(request)
            if state is None:
                continue
            if forecast.room(state.chi(_computed(request))) > 0:
                state.waited_steps = 0
                return None
            state.waited_steps += 1
            if state.waited_steps <= self._settings.max_wait_steps:
                return None
            state.waited_steps = 0
            return request
        return None

    def _skip_decodes(self, deficit_tokens: int) -> tuple[frozenset[Any], int]:
        if deficit_tokens <= 0:
            return frozenset(), 0
        widths = compat.decode_widths(self._scheduler)
        decodes = [request for request in self._scheduler.running if not request.is_prefill_chunk]
        indices = skipped_decodes(widths, deficit_tokens, self._next_victim)
        self._next_victim = (self._next_victim + len(indices)) % max(1, len(widths))
        return frozenset(decodes[index] for index in indices), sum(widths[index] for index in indices)

    def _forecast_held(self, forecast: StepPlan, floor_for: Any, arrivals: bool) -> list[Any]:
        """Go through the prefills as vLLM will; those in the waiting queues that find no room are held out."""
        held = []
        yields = arrivals and not compat.drains_kv_holders_first(self._scheduler)
        for request in self._prefills:
            state, waiting, spare = self._state(request), not compat.is_running(request), forecast.spare_tokens
            done = self._done(forecast, state, request) if waiting and spare > 0 else _computed(request)
            left = _tokens_left(request) + _computed(request) - done
            if forecast.bounded is not None:
                left = self._in_time(forecast, state, request, done, min(left, spare) if spare > 0 else left)
            if state is None:
                if waiting and (not left or (left > spare and compat.must_run_whole(request))):
                    held.append(request)
                    continue
                forecast.grant(request, min(left, max(spare, 0)), None, done)
                continue
            chi = state.chi(done)
            room = forecast.room(chi)
            if not left or (room <= 0 and request is not floor_for) or (yields and waiting):
                if waiting:
                    held.append(request)
                continue
            forecast.grant(request, min(left, max(room, 1)), chi, done, in_time=self._is_in_time(state))
        return held

    def _done(self, forecast: StepPlan, state: ScheduleState | None, request: Any) -> int:
        """What a waiting prompt need not compute; where it may get tokens at all, what the prefix cache holds of it, too."""
        done = _computed(request)
        full = forecast.bounded is not None and forecast.bounded.full
        if done or full or (state is not None and forecast.room(state.chi(0)) <= 0):
            return done
        return compat.cached_tokens(self._scheduler, request)

    def _in_time(self, step: StepPlan, state: ScheduleState | None, request: Any, computed: int, new: int) -> int:
        """Tokens of `new` with which the step ends by the running decodes' deadlines, where these bound `request`."""
        bounded = step.bounded
        if bounded is None or new <= 0 or not (state is None or self._is_in_time(state)):
            return new
        if bounded.full:
            return 0
        return bounded.largest(self._prompt(request, computed, new), new, may_wait=state is None)

    def _prompt(self, request: Any, computed: int, new: int) -> Prompt:
        """What is left of a prompt that is to get up to `new` tokens, and where its chunks may end."""
        left = request.num_tokens - computed
        if new > left or compat.must_run_whole(request):  # padded by drafts: all of them or none
            left = max(left, new)
            return Prompt(computed, left, left)
        scheduler = self._scheduler
        if compat.chunks_end_anywhere(scheduler):
            return Prompt(computed, left)
        return Prompt(computed, left, compat.smallest_chunk(scheduler, request, computed), compat.chunk_block_tokens(scheduler))

    def _limit_unbounded(self, step: StepPlan, request: Any, computed: int, new: int) -> int:
        """A prefill without chi: running, it leaves the decodes behind it their tokens; waiting, it is vLLM's affair."""
        allowed = new
        if compat.is_running(request):
            allowed = min(new, max(step.spare_tokens, 0))
        elif new < request.num_tokens - computed and compat.must_run_whole(request):
            return 0
        step.grant(request, allowed, None, computed)
        return allowed

    def _limit_prefill(self, step: StepPlan, state: ScheduleState, request: Any, computed: int, new: int) -> int:
        chi = state.chi(computed)
        room = step.room(chi)
        if request is step.floor_for:
            room = max(room, step.floor_tokens)
        if room <= 0:
            return 0
        padded = request.num_tokens - computed < new  # vLLM pads a prompt's only token by drafts and waits for room for all
        fewest = max(compat.smallest_chunk(self._scheduler, request, computed), self.free_width if padded else 0)
        allowed = min(new, max(room, fewest))
        if allowed < new and padded and not compat.is_running(request):
            return 0  # vLLM padded its one token with draft slots: all of them or none
        step.grant(request, allowed, chi, computed, in_time=self._is_in_time(state))
        state.record_chunk(computed)
        return allowed

    def _state(self, request: Any) -> ScheduleState | None:
        """What bounds the chunks of `request`: its schedule, else the default chunk if one is configured."""
        if compat.must_run_whole(request):
            return None
        state: ScheduleState | None = compat.state_of(request)
        if state is None:
            return self._default_state(request)
        return state if self._follows_schedules or not state.planned else None

    def _default_state(self, request: Any) -> ScheduleState | None:
        if self._settings.default_chunk_tokens is None or request.pooling_params is not None:
            return None
        state = ScheduleState((self._settings.default_chunk_tokens,), planned=False)
        compat.attach_state(request, state)
        return state


def _tokens_left(request: Any) -> int:
    return int(request.num_tokens + request.num_output_placeholders - request.num_computed_tokens)


def _computed(request: Any) -> int:
    return int(request.num_computed_tokens)


def _is_decode(request: Any, running: bool) -> bool:
    """Whether the request only takes its next token (and drafts): past its prompt, or its remote KV has arrived."""
    return not request.is_prefill_chunk if running else request.num_computed_tokens > 0


def _will_prefill_here(scheduler: Any, request: Any) -> bool:
    if compat.is_between_inputs(request) or compat.is_loading_kv(scheduler, request):
        return False
    return not compat.will_load_kv(scheduler, request) or compat.state_of(request) is not None
