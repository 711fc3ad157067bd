"""One vLLM engine: its V1 scheduler's order and bounds, with Kairos' plan for prefills, in simulated time."""

import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.chunk import Chunk
from vllm_kairos.sim.decodes import DecodeGroup
from vllm_kairos.sim.engine_listener import EngineListener
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.engine_state import node_state
from vllm_kairos.sim.governed import governed
from vllm_kairos.sim.inbox import JOB_LAG, KV_LAG, LOAD_LAG, Inbox
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kernel import STEP_END, Kernel
from vllm_kairos.sim.kv_pool import KvPool
from vllm_kairos.sim.leap import Leap
from vllm_kairos.sim.prefill_plan import PrefillPlan
from vllm_kairos.sim.step_log import Gaps, StepLog
from vllm_kairos.sim.step_times import StepTimes


class Engine:
    """Batches like vLLM's V1 scheduler under Kairos' plan: decodes, running prefills, then the queue, up to the budget.

    A step that carries only decodes is taken together with those after it, up to the next event that
    changes the batch; whatever arrives meanwhile cuts the run at the end of the step under way, or, with async
    scheduling, of the one where it counts.
    """

    def __init__(self, spec: EngineSpec, kernel: Kernel, listener: EngineListener, rng: random.Random) -> None:
        self.spec, self.log, self.governed = spec, StepLog(), governed(spec)
        self.pool = KvPool(spec.kv_blocks, spec.block_size_tokens, prefix_caching=spec.prefix_caching)
        self.decodes = DecodeGroup(spec.block_size_tokens)
        self.waiting: deque[Job] = deque()
        self.loading: dict[Job, None] = {}
        self.arrived: list[Job] = []  # their KV is here, they need a slot; in the order in which they began to load
        self.prefills: dict[Job, None] = {}  # running, in the order of admission
        self.leap: Leap | None = None
        self.preemptions = 0
        self._running: dict[Job, None] = {}  # decodes and prefills, in the order of admission
        self._kernel, self._listener, self._times = kernel, listener, StepTimes(spec, rng)
        self._loads = 0
        self._busy = False  # a step is under way or about to begin
        self._epoch = 0  # a step's end that was scheduled under an earlier one is void
        self._closed = False  # something was preempted for the step, so that nobody was admitted into it
        self._chunks: list[Chunk] = []
        self._joiners: list[Job] = []  # those whose KV was pulled, in their first step here
        self._inbox = Inbox()
        self.ended: list[Job] = []  # in the last step, before whose end the next one was composed
        self._freed = False  # whether those left something that the step now composed could not have
        self._lag = KV_LAG  # of the loads that the step now composed starts
        self._reserved_blocks = 0  # taken for the decodes' next token before prefills could have them
        self._step_began_s = self._step_ended_s = 0.0  # of the last one that is over
        self._deflection_ended = False

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def busy(self) -> bool:
        """Whether a step is under way."""
        return self._busy

    @property
    def running_requests(self) -> int:
        return len(self._running) + len(self.ended)

    @property
    def unseen(self) -> tuple[Job, ...]:
        """Jobs that no step could be composed with yet."""
        return self._inbox.jobs

    def submit(self, job: Job) -> None:
        """Queue `job` for the next step that begins."""
        job.submitted_s = self._kernel.now_s
        chunk_tokens = self.spec.unplanned_chunk_tokens
        if job.schedule is None and chunk_tokens is not None:
            job.bound_unplanned(chunk_tokens)
        self._hear(partial(self.waiting.append, job), JOB_LAG, job)
        self._wake(JOB_LAG)

    def kv_arrived(self, job: Job) -> None:
        """All of `job`'s KV but its last token's is here."""
        job.kv_arrived_s = self._kernel.now_s
        self._hear(partial(self._take_in, job), job.load_lag)
        self._wake(job.load_lag)

    def _take_in(self, job: Job) -> None:
        del self.loading[job]
        job.computed_tokens = job.request.prompt_tokens
        self.pool.publish(job)
        job.computed_tokens = job.tokens - 1  # the last one is computed again, for its logits
        insort(self.arrived, job, key=lambda job: job.load_order)

    def release(self, job: Job) -> None:
        """Free the KV of a prefill leg that was pulled."""
        if self._hear(partial(self.pool.release, job), KV_LAG) or self.waiting:
            self._wake(KV_LAG)

    def export(self, job: Job, left: Callable[[bool], None]) -> None:
        """Take the decode `job` out of the batch when the step under way ends; its blocks are held until `release`.

        `left` is told then whether it left: not if it is finished or was preempted meanwhile.
        """
        self._inbox.add(partial(self._leave, job, left), self._kernel.now_s, JOB_LAG)
        self._wake(JOB_LAG)

    def _hear(self, act: Callable[[], None], lag: int, job: Job | None = None) -> bool:
        """Act at once, unless the next step is composed already; returns whether it is."""
        ahead = self.spec.async_scheduling and self.leap is not None
        if ahead:
            self._inbox.add(act, self._kernel.now_s, lag, job)
        else:
            act()
        return ahead

    def decoding(self) -> Iterator[tuple[Job, int]]:
        """Yield every running decode with the tokens that have left the engine for it."""
        leap = self.leap
        done = leap.steps_by(self._kernel.now_s) if leap is not None and leap.steps > 1 else 0
        for job in self.decodes:
            yield job, self.decodes.produced_tokens(job) + done

    def state(self) -> NodeState:
        """Read the engine as it is at this moment."""
        return node_state(self, self._kernel.now_s)

    def shown_state(self) -> NodeState:
        """Read the engine as its node-state publisher does at the end of a step: without what arrived during it."""
        return node_state(self, self._kernel.now_s, seen_until_s=self._last_step_s()[0])

    @property
    def last_step_end_s(self) -> float:
        """When the publisher could last read the state; while nothing but KV is waited for, the engine looks all the time."""
        if not self._busy and (self.loading or self.arrived):
            return self._kernel.now_s
        return self._last_step_s()[1]

    @property
    def seen_work(self) -> bool:
        """Whether the end of the last step left work that the engine knew of."""
        if self._running or self.loading or self.arrived:
            return True
        return bool(self.waiting) and self.waiting[0].submitted_s <= self._step_began_s

    def _last_step_s(self) -> tuple[float, float]:
        """When the last step that is over began and ended."""
        leap = self.leap
        done = leap.steps_by(self._kernel.now_s) if leap is not None and leap.steps > 1 else 0
        if leap is None or not done:
            return self._step_began_s, self._step_ended_s
        return leap.end_s(done - 1), leap.end_s(done)

    def _wake(self, lag: int) -> None:
        """Begin if idle, or cut the run after the step under way, with async scheduling `lag` steps later."""
        if not self._busy:
            self._busy = True
            self._schedule_end(self._kernel.now_s)
        elif self.leap is not None:
            leap = self.leap
            steps = leap.steps_until(self._kernel.now_s, lag if self.spec.async_scheduling else 0)
            if steps < leap.steps:
                self.leap = Leap(leap.start_s, leap.first_s, leap.slope_s, steps)
                self._schedule_end(self.leap.end_s(steps))

    def _schedule_end(self, at_s: float) -> None:
        self._epoch += 1
        epoch = self._epoch
        self._kernel.at(max(at_s, self._kernel.now_s), lambda: self._end(epoch), STEP_END)

    def _end(self, epoch: int) -> None:
        if epoch != self._epoch:
            return
        leap, self.leap = self.leap, None
        ahead = leap is not None and self.spec.async_scheduling
        if leap is not None:
            self._finish_step(leap)
            self._step_began_s, self._step_ended_s = leap.end_s(leap.steps - 1), self._kernel.now_s
            if ahead:
                self._compose_unaware(leap)
            self.governed.ended(leap)
            ended, self._deflection_ended = self._deflection_ended, False
            self._listener.step_ended(self, deflection_ended=ended)
        if not (ahead and self._has_step):
            self._compose_at_once(ahead=ahead)
        self._begin()

    def _compose_unaware(self, leap: Leap) -> None:
        """Compose the step that follows as it was when the last one of `leap` began, which had freed nothing yet."""
        self._inbox.steps_ended(leap)
        self._inbox.take_seen()
        self._lag = LOAD_LAG
        self._compose(leap.end_s(leap.steps - 1))
        self._lag = KV_LAG
        self._freed = bool(self.ended)
        for job in self.ended:
            self.governed.forget(job)
            if not job.prefill_only:
                self.pool.release(job)
        self.ended.clear()

    def _compose_at_once(self, *, ahead: bool) -> None:
        """Compose a step of what there is; `ahead`: the one that was composed for this time has nothing to do."""
        while True:
            if ahead:
                self._inbox.step_passed(self._kernel.now_s)
                self._inbox.take_seen()
            else:
                self._inbox.take_all()
            self._compose(self._kernel.now_s)
            # When all was preempted, what the first look kept out of its step may enter the next one.
            if self._has_step or not (self._closed or self._inbox):
                return

    def _leave(self, job: Job, left: Callable[[bool], None]) -> None:
        runs = job in self.decodes
        if runs:
            del self._running[job]
            self.decodes.leave(job)
            job.last_token_s = self._kernel.now_s
            self.governed.forget(job)
        left(runs)

    @property
    def free_blocks(self) -> int:
        """Free blocks at the last step's begin, what its decodes will take not counted."""
        return self.pool.free_blocks + self._reserved_blocks

    def _begin(self) -> None:
        """Begin the step that was composed and schedule its end; without work the engine is idle."""
        self._busy = self._has_step
        if self._busy:
            self.governed.begun(self._kernel.now_s, self.decodes, self._joiners, self._chunks)
            self.leap = self._leap()
            self._schedule_end(self.leap.end_s(self.leap.steps))

    @property
    def _has_step(self) -> bool:
        return bool(self._chunks or len(self.decodes))

    def _compose(self, known_s: float) -> None:
        self.governed.compose(known_s)
        plan = PrefillPlan(self, self._listener)
        while self.decodes.new_blocks(1) > self.pool.free_blocks:
            self.preempt_latest()
            plan.preempted = True
        self._reserve()
        self._chunks, self._closed = plan.run(), plan.preempted

    def _reserve(self) -> None:
        """Keep the blocks of the decodes' next token from the prefills."""
        blocks = self.decodes.new_blocks(1)
        if blocks < self._reserved_blocks:
            self.pool.give_back(self._reserved_blocks - blocks)
        else:
            self.pool.take(blocks - self._reserved_blocks)
        self._reserved_blocks = blocks

    def admit_arrived(self) -> None:
        """Let those whose KV was pulled decode, as long as there are slots; their blocks are held already."""
        while self.arrived and self.running_requests < self.spec.max_running_requests:
            job = self.arrived.pop(0)
            self._running[job] = None
            self.pool.trim(job)
            self.decodes.join(job)
            self._reserve()
            self._joiners.append(job)

    def preempt_latest(self, spare: Job | None = None) -> bool:
        """Put the latest admitted job back to the head of the queue; False when that would be `spare`."""
        job = next(reversed(self._running))
        if job is spare:
            return False
        del self._running[job]
        if job in self.decodes:
            self.decodes.leave(job)
            if job not in self._joiners:  # those have had no token here
                job.last_token_s = self._kernel.now_s
            if self._reserved_blocks:
                self._reserve()
        else:
            del self.prefills[job]
        if job in self._joiners:
            self._joiners.remove(job)
        self.pool.release(job)
        job.computed_tokens, job.pulls_kv = 0, False
        self.governed.forget(job)
        job.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(job)
        return True

    def start_load(self, job: Job) -> None:
        """Count `job` among those whose KV is on its way."""
        self._loads += 1
        job.load_order, job.load_lag = self._loads, self._lag
        self.loading[job] = None

    def admit_prefill(self, job: Job) -> None:
        """Count `job` among the running ones."""
        self._running[job] = None
        self.prefills[job] = None

    def start_chunk(self, job: Job, tokens: int) -> None:
        """Count `tokens` more of `job` as computed: as in vLLM, the next prompt of this very step may share them."""
        if job.started_s != job.started_s:
            job.started_s = self._kernel.now_s
        job.computed_tokens += tokens
        self.pool.publish(job)

    def _leap(self) -> Leap:
        """The step just composed; without prefill, with all that can follow it unchanged."""
        decodes, now_s = self.decodes, self._kernel.now_s
        if self._chunks or not self._may_leap():
            return self._times.step(now_s, decodes, self._chunks)
        steps = decodes.steps_within(self.pool.free_blocks + self._reserved_blocks, decodes.steps_to_finish())
        return self._times.run(now_s, decodes, steps)

    def _may_leap(self) -> bool:
        """Whether the steps to come are sure to be like this one until an event or the first member's end."""
        if self._closed or self._joiners or self.prefills or self._freed or self._inbox or self.spec.step_noise:
            return False
        if self.governed.asked:  # a prompt that waits for time is let in after a number of steps
            return False
        first = next((job for job in self.waiting if job.schedule is not None and not job.pulls_kv), None)
        # One that its chi keeps out is let in after a number of steps: they have to be counted.
        return first is None or first.schedule is None or first.schedule.chi(0) > len(self.decodes)

    def _finish_step(self, leap: Leap) -> None:
        self.governed.reached_last(leap, self.decodes)
        self.log.add_steps(leap, len(self.decodes), len(self._joiners), self._chunks)
        self.pool.give_back(self._reserved_blocks)
        self.pool.take(self.decodes.new_blocks(leap.steps))
        self._reserved_blocks = 0
        joiners, self._joiners = self._joiners, []
        finished = self.decodes.advance(leap.steps)
        for job in joiners:
            self._token_after_load(job)
        for job in finished:
            self._finish(job)
        chunks, self._chunks = self._chunks, []
        for job, _ in chunks:
            self._finish_chunk(job)

    def _finish_chunk(self, job: Job) -> None:
        if job.tokens_left:
            return
        del self.prefills[job]
        now_s = self._kernel.now_s
        if job.prefilled_s != job.prefilled_s:
            job.prefilled_s = now_s
            self._deflection_ended = self._deflection_ended or job.deflected
        job.produced_tokens += 1
        if job.prefill_only:
            del self._running[job]
            self._note_ended(job)
            self._listener.prefilled(self, job)
            return
        self._token_after_prefill(job, now_s)

    def _token_after_load(self, job: Job) -> None:
        now_s = self._kernel.now_s
        if job.first_token_s == job.first_token_s:
            self.log.add_gaps(Gaps(Cause.MIGRATED, 1, now_s - job.last_token_s, 0.0, 1))
        else:
            job.first_token_s = now_s
            self._listener.first_token(self, job)

    def _token_after_prefill(self, job: Job, now_s: float) -> None:
        if job.produced_tokens == 1:
            job.first_token_s = now_s
            self._listener.first_token(self, job)
        else:
            self.log.add_gaps(Gaps(Cause.PREEMPTED, 1, now_s - job.last_token_s, 0.0, 1))
        if job.produced_tokens < job.output_tokens:
            self.decodes.join(job)
        else:
            self._finish(job)

    def _finish(self, job: Job) -> None:
        del self._running[job]
        self._note_ended(job)
        job.finished_s = self._kernel.now_s
        self._listener.finished(self, job)

    def _note_ended(self, job: Job) -> None:
        if self.spec.async_scheduling:
            self.ended.append(job)
            return
        self.governed.forget(job)
        if not job.prefill_only:
            self.pool.release(job)
