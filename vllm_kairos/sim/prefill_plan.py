"""Which prompts a step carries and how much of each: vLLM's order under Kairos' step plan."""

from itertools import chain
from typing import TYPE_CHECKING

from vllm_kairos.core.step_plan import StepPlan
from vllm_kairos.sim.chunk import Chunk
from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine
    from vllm_kairos.sim.engine_listener import EngineListener


class PrefillPlan:
    """The prefill part of the engine's next step; blocks are held and queue entries admitted on the way.

    Running prefills come first, then those whose KV was pulled, then the queue in order, as long as
    slots, blocks and budget last. A prompt whose chi leaves no room is held out and lets those behind it
    pass. What a step may hold is settled when the plan is made, as in the engine plugin: decodes that
    are preempted afterwards leave their tokens unused. Once `preempted` is true, nothing new may enter.
    """

    def __init__(self, engine: "Engine", listener: "EngineListener") -> None:
        self._engine, self._listener = engine, listener
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
        schedule, forecast = job.schedule, self._forecast
        if schedule is None:
            forecast.grant(job, min(job.tokens_left, max(forecast.spare_tokens, 0)), None)
            return True
        chi = schedule.chi(job.computed_tokens)
        room = forecast.room(chi)
        if room <= 0 and job is not self._step.floor_for:
            return False
        forecast.grant(job, min(job.tokens_left, max(room, 1)), chi)
        return True

    @property
    def _unplanned_room(self) -> int:
        """What vLLM itself would give to the head of the queue."""
        return self._step.spare_tokens + self._kept_tokens

    def _allowance(self, job: Job) -> int:
        """Prompt tokens that `job` may take in this step."""
        schedule = job.schedule
        if schedule is not None:
            room = self._step.room(schedule.chi(job.computed_tokens))
        else:
            room = self._step.spare_tokens if job in self._engine.prefills else self._unplanned_room
        if job is self._step.floor_for:
            room = max(room, min(self._step.floor_tokens, self._unplanned_room))
        return min(job.tokens_left, room)

    def _grant(self, job: Job, tokens: int) -> None:
        schedule = job.schedule
        self._step.grant(job, tokens, None if schedule is None else schedule.chi(job.computed_tokens))
        if schedule is not None:
            schedule.record_chunk(job.computed_tokens)
        self._engine.start_chunk(job, tokens)
        self._chunks.append(Chunk(job, tokens))

    def _give_floor(self, decodes: int) -> None:
        """Note the first bounded prefill as overdue when its chi has left it no room for too many steps in a row."""
        engine, step = self._engine, self._step
        queued = (job for job in engine.waiting if not job.pulls_kv)
        job = next((job for job in chain(engine.prefills, queued) if job.schedule is not None), None)
        if job is None or job.schedule is None:
            return
        state = job.schedule
        if step.room(state.chi(job.computed_tokens)) > 0:
            state.waited_steps = 0
            return
        state.waited_steps += 1
        if state.waited_steps > engine.spec.max_wait_steps:
            state.waited_steps = 0
            step.floor_for = job
            step.floor_tokens = min(engine.spec.floor_chunk_tokens, max(step.budget_tokens - decodes, 0))
