"""Which prompts a step carries and how much of each: vLLM's order under Kairos' step plan."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from vllm_kairos.core.governor import BoundedStep, GovernorMode, Prompt
from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.core.step_plan import StepPlan
from vllm_kairos.sim.chunk import Chunk
from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine
    from vllm_kairos.sim.engine_listener import EngineListener


class PrefillPlan:
    """The prefill part of the engine's next step; blocks are held and queue entries admitted on the way.

    Running prefills come first, then those whose KV was pulled, then the queue in order, as long as
    slots, blocks and budget last. A prompt whose chi, or the decodes' deadlines, leave no room is held out and
    lets those behind it pass. What a step may hold is settled when the plan is made, as in the engine plugin: decodes that
    are preempted afterwards leave their tokens unused. Once `preempted` is true, nothing new may enter.
    """

    def __init__(self, engine: "Engine", listener: "EngineListener") -> None:
        self._engine, self._listener = engine, listener
        governor = engine.spec.governor
        self._counts_prompts = governor is not None and governor.ttft_slo_s is not None
        self._mode = GovernorMode.STRICT if governor is None else governor.mode
        # The plan, unlike vLLM, keeps a token for those whose end is not known when it is made.
        self._kept_tokens = engine.running_requests - len(engine.decodes) - len(engine.prefills)
        free_slots = engine.spec.max_running_requests - engine.running_requests
        decodes, budget = len(engine.decodes) + self._kept_tokens, engine.spec.token_budget_tokens
        arrivals = min(len(engine.arrived), free_slots)
        self._step = StepPlan(budget_tokens=budget, decode_tokens=decodes + arrivals)
        # Who is held out is settled beforehand too, when nobody knows yet what the prefix cache saves.
        self._forecast = StepPlan(budget_tokens=budget, decode_tokens=decodes + arrivals)
        self.preempted = False
        self._chunks: list[Chunk] = []
        self._give_floor(decodes)
        self._bound(arrivals)

    def run(self) -> list[Chunk]:
        """Compose the step's chunks."""
        for job in self._engine.prefills:
            self._forecast_room(job)
        for job in list(self._engine.prefills):
            if job in self._engine.prefills:  # not preempted on behalf of an earlier one
                self._go_on(job)
        if not self.preempted:
            self._engine.admit_arrived()
            self._admit_waiting()
        return self._chunks

    def _go_on(self, job: Job) -> None:
        """Give a running prefill its next chunk, preempting the latest admitted jobs for its blocks."""
        engine = self._engine
        tokens = self._allowance(job)
        if tokens <= 0:
            return
        while not engine.pool.hold(job, job.computed_tokens + tokens):
            self.preempted = True
            if not engine.preempt_latest(spare=job):
                engine.preempt_latest()
                return
        self._grant(job, tokens)

    def _admit_waiting(self) -> None:
        """Go through the queue until a job finds no slot, blocks or budget."""
        engine = self._engine
        held: list[Job] = []
        while engine.waiting:
            job = engine.waiting[0]
            if engine.running_requests >= engine.spec.max_running_requests or self._unplanned_room <= 0:
                break
            if job.pulls_kv:
                if not self._start_load(job):
                    break
            elif not self._forecast_room(job):
                held.append(job)
            elif not self._admit(job):
                break
            engine.waiting.popleft()
        engine.waiting.extendleft(reversed(held))

    def _start_load(self, job: Job) -> bool:
        engine = self._engine
        engine.pool.attach(job)
        needed = engine.pool.blocks_for(job.tokens) - job.held_blocks
        if needed + self._promised_blocks() > engine.pool.free_blocks:
            self._turn_away(job)
            return False
        engine.pool.hold(job, job.tokens)
        job.hit_tokens = job.computed_tokens
        engine.start_load(job)
        self._listener.kv_wanted(engine, job)
        return True

    def _promised_blocks(self) -> int:
        """Blocks that running prefills still need; no load may take them, since it cannot be preempted."""
        pool = self._engine.pool
        return sum(max(0, pool.blocks_for(job.tokens) - job.held_blocks) for job in self._engine.prefills)

    def _admit(self, job: Job) -> bool:
        engine = self._engine
        engine.pool.attach(job)
        # vLLM admits a prompt only when all of it fits at this moment (scheduler_reserve_full_isl).
        if engine.pool.blocks_for(job.tokens) - job.held_blocks > engine.pool.free_blocks:
            self._turn_away(job)
            return False
        tokens = self._allowance(job)
        if tokens <= 0:  # the deadlines, which what is cached of it brings nearer
            self._turn_away(job)
            return False
        engine.pool.hold(job, job.computed_tokens + tokens)
        if not job.preemptions:
            job.hit_tokens = job.computed_tokens
        engine.admit_prefill(job)
        self._grant(job, tokens)
        return True

    def _turn_away(self, job: Job) -> None:
        self._engine.pool.release(job)
        job.computed_tokens = 0

    def _forecast_room(self, job: Job) -> bool:
        """Whether `job` is let into the step, after all those asked about before."""
        schedule, forecast, done = self._schedule(job), self._forecast, job.computed_tokens
        spare = max(forecast.spare_tokens, 0)
        left = self._in_time(forecast, job, min(job.tokens_left, spare) if spare else job.tokens_left)
        if schedule is None:
            forecast.grant(job, min(left, spare), None, done)
            return left > 0
        chi = schedule.chi(done)
        room = forecast.room(chi)
        if not left or (room <= 0 and job is not self._step.floor_for):
            return False
        forecast.grant(job, min(left, max(room, 1)), chi, done, in_time=self._is_in_time(job))
        return True

    @property
    def _unplanned_room(self) -> int:
        """What vLLM itself would give to the head of the queue."""
        return self._step.spare_tokens + self._kept_tokens

    def _allowance(self, job: Job) -> int:
        """Prompt tokens that `job` may take in this step."""
        schedule = self._schedule(job)
        if schedule is not None:
            room = self._step.room(schedule.chi(job.computed_tokens))
        else:
            room = self._step.spare_tokens if job in self._engine.prefills else self._unplanned_room
        if job is self._step.floor_for:
            room = max(room, min(self._step.floor_tokens, self._unplanned_room))
        return self._in_time(self._step, job, min(job.tokens_left, room))

    def _grant(self, job: Job, tokens: int) -> None:
        schedule, done = self._schedule(job), job.computed_tokens
        chi = None if schedule is None else schedule.chi(done)
        self._step.grant(job, tokens, chi, done, in_time=self._is_in_time(job))
        if schedule is not None:
            schedule.record_chunk(done)
        self._engine.start_chunk(job, tokens)
        self._chunks.append(Chunk(job, tokens))

    def _schedule(self, job: Job) -> ScheduleState | None:
        """What bounds the chunks of `job` but deadlines, if anything does."""
        schedule = job.schedule
        if schedule is not None and schedule.planned and not self._mode.follows_schedules:
            return None
        return schedule

    def _is_in_time(self, job: Job) -> bool:
        """Whether deadlines bound `job`."""
        return not job.deflected or self._mode.bounds_scheduled

    def _in_time(self, step: StepPlan, job: Job, tokens: int) -> int:
        """Of `tokens`, what leaves `step` time to end by the decodes' deadlines, where these bound `job`."""
        if step.bounded is None or tokens <= 0 or not self._is_in_time(job):
            return tokens
        prompt = Prompt(job.computed_tokens, job.tokens_left)
        return step.bounded.largest(prompt, tokens, may_wait=self._schedule(job) is None)

    def _prompts(self) -> Iterator[Job]:
        """Those that wait for prefill, in the order in which they get it."""
        return chain(self._engine.prefills, (job for job in self._engine.waiting if not job.pulls_kv))

    def _bound(self, arrivals: int) -> None:
        """Ask the governor, if there is one, what the decodes' deadlines leave of the step."""
        engine = self._engine
        head = next((job for job in self._prompts() if self._is_in_time(job)), None)
        kv_tokens = engine.decodes.kv_tokens + sum(job.computed_tokens for job in engine.ended)
        kv_tokens += sum(job.tokens for job in engine.arrived[:arrivals])
        prompts = sum(1 for _ in self._prompts()) if self._counts_prompts else 0
        bound = engine.governed.bound(head, prompts, self._step.decode_tokens, kv_tokens)
        if bound is not None:
            self._step.bounded, self._forecast.bounded = BoundedStep(bound), BoundedStep(bound)

    def _give_floor(self, decodes: int) -> None:
        """Note the first bounded prefill as overdue when its chi has left it no room for too many steps in a row."""
        engine, step = self._engine, self._step
        found = ((job, schedule) for job in self._prompts() if (schedule := self._schedule(job)) is not None)
        job, state = next(found, (None, None))
        if job is None or state is None:
            return
        if step.room(state.chi(job.computed_tokens)) > 0:
            state.waited_steps = 0
            return
        state.waited_steps += 1
        if state.waited_steps > engine.spec.max_wait_steps:
            state.waited_steps = 0
            step.floor_for = job
            step.floor_tokens = min(engine.spec.floor_chunk_tokens, max(step.budget_tokens - decodes, 0))
