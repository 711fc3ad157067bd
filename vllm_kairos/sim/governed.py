"""The deadline governor in a simulated engine: told of its steps, asked how much prefill the next one may carry."""

from collections.abc import Sequence

from vllm_kairos.core.governor import NO_CHUNKS, Flight, Governor, GovernorSettings, Objective, Queue, StepBound, with_chunk
from vllm_kairos.sim.chunk import Chunk, totals_of
from vllm_kairos.sim.decodes import DecodeGroup
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.leap import Leap

_NO_DEADLINE = Objective()


class Ungoverned:
    """An engine without a governor."""

    asked = False
    """Whether a prompt that deadlines bound waited when the last step was composed."""

    def compose(self, at_s: float) -> None:
        """A step is about to be composed, by what the engine knew at `at_s`."""

    def bound(self, head: Job | None, prompts: int, decodes: int, kv_tokens: int) -> StepBound | None:
        """What bounds the prefill of that step; None: nothing does.

        `head` is the first prompt that deadlines bound, of `prompts` that wait; `decodes` with `kv_tokens` of KV get
        a token in the step.
        """
        return None

    def begun(self, now_s: float, decodes: DecodeGroup, joiners: Sequence[Job], chunks: Sequence[Chunk]) -> None:
        """That step begins; `joiners` are decodes in their first step here."""

    def reached_last(self, leap: Leap, decodes: DecodeGroup) -> None:
        """All steps of `leap` but the last are over; `decodes` are as at its beginning."""

    def ended(self, leap: Leap) -> None:
        """Its last step is over, too."""

    def forget(self, job: Job) -> None:
        """`job` has ended, or lost its place."""


class Governed(Ungoverned):
    """Runs the engine plugin's governor. Where that is told of each step, runs of decode steps are told at once."""

    def __init__(self, spec: EngineSpec, settings: GovernorSettings) -> None:
        self._governor = Governor(spec.model, settings)
        self._objective, self._budget_tokens = settings.objective, spec.token_budget_tokens
        self._flight: Flight | None = None
        self._head: Job | None = None
        self._composed_s = 0.0
        self._gone_kv_tokens = 0  # of those that ended in the last step, which the plugin counts until the next one

    def compose(self, at_s: float) -> None:
        self._composed_s = at_s

    def bound(self, head: Job | None, prompts: int, decodes: int, kv_tokens: int) -> StepBound | None:
        self._head, self.asked = head, head is not None
        if head is None:
            self._governor.nobody_waits()
            return None
        kv_tokens += self._gone_kv_tokens
        whole = with_chunk(NO_CHUNKS, head.computed_tokens, head.tokens_left)
        queue = None if head.produced_tokens else Queue(prompts, whole, head.submitted_s, max(1, self._budget_tokens - decodes))
        return self._governor.bound(self._composed_s, decodes, kv_tokens, head.request.request_id, queue)

    def begun(self, now_s: float, decodes: DecodeGroup, joiners: Sequence[Job], chunks: Sequence[Chunk]) -> None:
        if any(job is self._head for job, _ in chunks):
            self._governor.head_served(self._composed_s)
        kv_tokens = decodes.kv_tokens + sum(job.computed_tokens - tokens for job, tokens in chunks)
        real = [chunk for chunk in chunks if not _looks_like_a_decode(chunk)]
        count = len(decodes) + len(chunks) - len(real)
        self._flight = self._governor.scheduled(now_s, count, kv_tokens, totals_of(real) if real else NO_CHUNKS)
        joined = {job.request.request_id: self._objective_of(job, decodes.produced_tokens(job)) for job in joiners}
        prefilled = [job for job, _ in chunks if not job.tokens_left]
        joined |= {job.request.request_id: self._objective_of(job, job.produced_tokens) for job in prefilled}
        told = self._governor.deadlines.go_on(joined, len(decodes) + len(prefilled), self._flight)
        assert told, f"{len(decodes)} decodes and {len(prefilled)} prefills are not those with deadlines"

    def reached_last(self, leap: Leap, decodes: DecodeGroup) -> None:
        self._gone_kv_tokens = 0
        more = leap.steps - 1
        if not more:
            return
        assert self._flight is not None
        # What is learned from those in between is what the first and the last teach.
        self._governor.finished(self._flight, leap.end_s(1), leap.first_s)
        kv_tokens = decodes.kv_tokens + more * len(decodes)
        self._flight = self._governor.scheduled(leap.end_s(more), len(decodes), kv_tokens, NO_CHUNKS)
        assert self._governor.deadlines.go_on({}, len(decodes), self._flight, steps=more)

    def ended(self, leap: Leap) -> None:
        assert self._flight is not None
        took_s = leap.first_s + (leap.steps - 1) * leap.slope_s
        self._governor.finished(self._flight, leap.end_s(leap.steps), took_s)

    def forget(self, job: Job) -> None:
        self._governor.deadlines.forget(job.request.request_id)
        self._gone_kv_tokens += job.computed_tokens

    def _objective_of(self, job: Job, produced_tokens: int) -> Objective:
        """The objective of a job that begins to decode; none where the token it gets is its last."""
        if produced_tokens + 1 >= job.output_tokens:
            return _NO_DEADLINE
        request = job.request
        own = Objective(request.tbt_slo_s, request.tpot_slo_s)
        return self._objective if own == _NO_DEADLINE else own


def _looks_like_a_decode(chunk: Chunk) -> bool:
    """A prompt's last token by itself: the plugin takes it for one."""
    return chunk.tokens == 1 and chunk.job.computed_tokens >= chunk.job.request.prompt_tokens


def governed(spec: EngineSpec) -> Ungoverned:
    """What `spec` asks for."""
    return Ungoverned() if spec.governor is None else Governed(spec, spec.governor)
