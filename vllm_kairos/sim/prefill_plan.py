"""Which prompts a step carries and how much of each: vLLM's order under Kairos' step plan."""

from typing import TYPE_CHECKING, NamedTuple

from vllm_kairos.core.step_plan import StepPlan
from vllm_kairos.sim.job import Job

if TYPE_CHECKING:
    from vllm_kairos.sim.engine import Engine, EngineListener


class Chunk(NamedTuple):
    """What one prompt gets of a step."""

    job: Job
    tokens: int


def plan_prefills(engine: "Engine", listener: "EngineListener", *, admit: bool) -> list[Chunk]:
    """Compose the prefill part of the engine's next step; blocks are held and queue entries admitted on the way.

    Running prefills come first, then the queue in order, as long as slots, blocks and budget last. A
    prompt whose chi leaves no room is held out and lets those behind it pass. `admit` False: something
    was preempted for this step, so nothing new may enter it.
    """
    plan = _Plan(engine, listener)
    for job in list(engine.prefills):
        if job in engine.prefills:  # not preempted on behalf of an earlier one
            plan.go_on(job)
    if admit and not plan.preempted:
        plan.admit_waiting()
    return [chunk for chunk in plan.chunks if chunk.job in engine.prefills]


class _Plan:
    def __init__(self, engine: "Engine", listener: "EngineListener") -> None:
        self._engine, self._listener = engine, listener
        self._step = StepPlan(budget_tokens=engine.spec.token_budget_tokens, decode_tokens=len(engine.decodes))
        self.chunks: list[Chunk] = []
        self.preempted = False
        self._give_floor()

    def go_on(self, job: Job) -> None:
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

    def admit_waiting(self) -> None:
        """Go through the queue until a job finds no slot, blocks or budget."""
        engine = self._engine
        held: list[Job] = []
        while engine.waiting:
            job = engine.waiting[0]
            if job.pulls_kv:
                if not self._start_load(job):
                    break
            elif engine.running_requests >= engine.spec.max_running_requests or self._step.spare_tokens <= 0:
                break
            elif not self._has_room(job):
                held.append(job)
            elif not self._admit(job):
                break
            engine.waiting.popleft()
        engine.waiting.extendleft(reversed(held))

    def _start_load(self, job: Job) -> bool:
        engine = self._engine
        engine.pool.attach(job)
        job.hit_tokens = job.computed_tokens
        if not engine.pool.hold(job, max(job.computed_tokens, job.request.prompt_tokens - 1)):
            engine.pool.release(job)
            job.computed_tokens = 0
            return False
        engine.loading[job] = None
        self._listener.kv_wanted(engine, job)
        return True

    def _admit(self, job: Job) -> bool:
        engine = self._engine
        engine.pool.attach(job)
        tokens = self._allowance(job)
        if not engine.pool.hold(job, job.computed_tokens + tokens):
            engine.pool.release(job)
            job.computed_tokens = 0
            return False
        if not job.preemptions:
            job.hit_tokens = job.computed_tokens
        engine.admit_prefill(job)
        self._grant(job, tokens)
        return True

    def _has_room(self, job: Job) -> bool:
        schedule = job.schedule
        return schedule is None or job is self._step.floor_for or self._step.room(schedule.chi(job.computed_tokens)) > 0

    def _allowance(self, job: Job) -> int:
        """Prompt tokens that `job` may take in this step."""
        schedule = job.schedule
        room = self._step.spare_tokens if schedule is None else self._step.room(schedule.chi(job.computed_tokens))
        if job is self._step.floor_for:
            room = max(room, self._step.floor_tokens)
        return min(job.tokens_left, room)

    def _grant(self, job: Job, tokens: int) -> None:
        schedule = job.schedule
        self._step.grant(job, tokens, None if schedule is None else schedule.chi(job.computed_tokens))
        if schedule is not None:
            schedule.record_chunk(job.computed_tokens)
        self.chunks.append(Chunk(job, tokens))

    def _give_floor(self) -> None:
        """Note the first prefill as overdue when its chi has left it no room for too many steps in a row."""
        engine, step = self._engine, self._step
        job = next(iter(engine.prefills), None) or next((job for job in engine.waiting if not job.pulls_kv), None)
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
            step.floor_tokens = min(engine.spec.floor_chunk_tokens, max(step.spare_tokens, 0))
