"""One leg of a request on one engine: the only mutable value that engines, network and router share."""

from dataclasses import dataclass, field
from math import nan

from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.workload.request import TraceRequest


@dataclass(slots=True, eq=False, kw_only=True)
class Job:
    """A request on an engine. Times are the simulation's, NaN until they happen."""

    request: TraceRequest
    prefill_only: bool = False  # a prefill leg: it ends with its first token and holds its KV until that is pulled
    pulls_kv: bool = False  # a decode leg whose KV was computed elsewhere
    schedule: ScheduleState | None = None  # bounds its prefill; planned: by order of the router
    computed_tokens: int = 0
    produced_tokens: int = 0
    held_blocks: int = 0
    shared_hashes: list[int] = field(default_factory=list)  # prefix blocks held together with other jobs
    published_hashes: int = 0  # leading prefix blocks that were attached or made reusable
    hit_tokens: int = 0  # prompt tokens found in the engine's prefix cache at first admission
    preemptions: int = 0
    load_order: int = 0  # among those that pulled KV into this engine
    load_lag: int = 0  # steps after the one under way at its end that cannot have it

    # Set and read by DecodeGroup while the job decodes.
    finish_step: int = -1
    context_offset: int = 0

    submitted_s: float = nan
    started_s: float = nan  # first chunk
    prefilled_s: float = nan  # whole prompt computed here
    load_started_s: float = nan
    kv_arrived_s: float = nan
    first_token_s: float = nan
    last_token_s: float = nan  # kept over a preemption or a migration only
    finished_s: float = nan

    def bound_unplanned(self, chunk_tokens: int) -> None:
        """Bound any prefill of this job by `chunk_tokens` a step, decodes included; nobody planned it."""
        self.schedule = ScheduleState((chunk_tokens,), planned=False)

    @property
    def deflected(self) -> bool:
        """Whether the router planned its prefill on this engine."""
        return self.schedule is not None and self.schedule.planned

    @property
    def output_tokens(self) -> int:
        return 1 if self.prefill_only else self.request.output_tokens

    @property
    def tokens(self) -> int:
        """Prompt and produced tokens: what has to be computed before the next one can be sampled."""
        return self.request.prompt_tokens + self.produced_tokens

    def moved(self) -> "Job":
        """Return the leg that goes on from this one's last token on another engine, once it has pulled the KV."""
        return Job(
            request=self.request,
            pulls_kv=True,
            produced_tokens=self.produced_tokens,
            first_token_s=self.first_token_s,
            last_token_s=self.last_token_s,
        )

    @property
    def tokens_left(self) -> int:
        """Tokens still to compute before the next one can be sampled; after a preemption, produced ones too."""
        return self.tokens - self.computed_tokens
