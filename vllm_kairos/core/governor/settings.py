"""How the governor sizes prefill."""

from dataclasses import dataclass
from enum import StrEnum

from vllm_kairos.core.governor.deadlines import Objective

DEFAULT_OBJECTIVE = Objective(tbt_s=0.070)


class GovernorMode(StrEnum):
    """What share of the time to the earliest deadline a step with prefill may take, by the corrected prediction.

    A step carries the most prefill, in queue order, that it can within that share. Where decodes alone would
    take longer it carries none. In every mode a prefill that has starved gets its floor whatever the deadline.
    """

    STRICT = "strict"
    """The whole of it. No prefill beyond a deadline, but for starvation. A prediction that is too low by a share e
    makes a step end late by at most e times that time."""

    GUARDED = "guarded"
    """`beta` of it: no step is late while predictions are too low by less than 1/beta - 1, and beyond that by at most
    (1 + e) * beta - 1 of that time. A step whose deadline decodes alone would miss carries the floor, for nothing
    can be saved by waiting."""

    ADAPTIVE = "adaptive"
    """As GUARDED, but the share follows the errors of the last 100 mixed steps: 1 over the ratio of measured to predicted
    time that 97 % of them stayed within (0.5..1). As long as errors go on as they were, 3 % of steps may be late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorSettings:
    """Settings of a `Governor`.

    `objective` holds for requests that bring none. The prompt at the head of the queue, if it got no token for
    `starvation_s`, gets `floor_tokens` in the next step, or all of it if it must run whole.
    """

    mode: GovernorMode = GovernorMode.GUARDED
    objective: Objective = DEFAULT_OBJECTIVE
    beta: float = 0.9
    starvation_s: float = 1.0
    floor_tokens: int = 16
    correct: bool = True
    """Whether predictions are corrected by measured steps."""
