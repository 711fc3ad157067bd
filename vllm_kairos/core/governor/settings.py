"""How the governor sizes prefill."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from vllm_kairos.core.governor.deadlines import Objective

DEFAULT_OBJECTIVE = Objective(tbt_s=0.070)
MEASURED: Literal["measured"] = "measured"


class GovernorMode(StrEnum):
    """What bounds a prompt that brings a chunk schedule. Any other is bounded by deadlines, in every mode."""

    STRICT = "strict"
    """Its schedule, as it is."""

    GUARDED = "guarded"
    """The smaller of schedule and what deadlines allow."""

    ADAPTIVE = "adaptive"
    """What deadlines allow; schedules are not looked at."""

    @property
    def follows_schedules(self) -> bool:
        """Whether a schedule bounds its prompt."""
        return self is not GovernorMode.ADAPTIVE

    @property
    def bounds_scheduled(self) -> bool:
        """Whether deadlines bound a prompt that brings a schedule."""
        return self is not GovernorMode.STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorSettings:
    """Settings of a `Governor`.

    `objective` holds for requests that bring none. A step with prefill may take the share `beta` of the time to the
    earliest deadline, by its corrected prediction: none is late while predictions are too low by less than
    1/beta - 1. MEASURED: the share that 97 % of the last mixed steps would have kept (`MeasuredMargin`).
    The first prompt in the queue that deadlines bound, if it got no token for `starvation_s`, gets `floor_tokens` in
    the next step, or all of it if it must run whole.
    """

    mode: GovernorMode = GovernorMode.GUARDED
    objective: Objective = DEFAULT_OBJECTIVE
    beta: float | Literal["measured"] = 0.9
    starvation_s: float = 1.0
    floor_tokens: int = 16
    ttft_slo_s: float | None = None
    """Where as many prompts wait as decode, deadlines do not hold back a first one that would get its first token later
    than this after it came; None: they always do."""
    patience_tokens: float = 8.0
    """How many TPOT objectives' time the first prompt waits for a chunk that is worth its step (`StepBound.waits`)."""
    correct: bool = True
    """Whether predictions are corrected by measured steps."""
