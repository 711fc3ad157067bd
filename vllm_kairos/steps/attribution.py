"""The rules by which steps and gaps between tokens are put down to a cause. Pure; times are one engine's clock."""

from typing import NamedTuple

from vllm_kairos.core.gap_cause import Cause

TIMED_CAUSES = (Cause.DECODE, Cause.DEFLECTED, Cause.UNPLANNED, Cause.STALL)
"""Those that the time of an engine divides into; a tie goes to the first."""

GAP_CAUSES = (Cause.DECODE, Cause.DEFLECTED, Cause.UNPLANNED, Cause.PREEMPTED, Cause.STALL)
"""What gaps on an engine are put down to."""

_SLOT = {cause: slot for slot, cause in enumerate(TIMED_CAUSES)}

Reading = tuple[float, float, float, float]
"""Seconds by TIMED_CAUSES."""


class StepSpan(NamedTuple):
    """When one step ran. Spans of consecutive steps tile the time without gap or overlap.

    A step runs from when it was handed to the workers, or from the end of the step before where that is
    later (with async scheduling it mostly is), to when its output was taken in; before that is `idle_s`.
    """

    idle_s: float
    run_s: float
    follows: bool  # it has a request in common with the step before: the engine had no reason to be idle

    @property
    def actual_s(self) -> float:
        """What to hold against a prediction: profiles predict step-to-step periods, the host's work included."""
        return self.idle_s + self.run_s if self.follows else self.run_s


def carried(deflected_tokens: int, unplanned_tokens: int) -> Cause:
    """What a step with so many prefill tokens of either kind carries beside decodes; of both kinds: UNPLANNED."""
    if unplanned_tokens:
        return Cause.UNPLANNED
    return Cause.DEFLECTED if deflected_tokens else Cause.DECODE


def step_cause(load: Cause, actual_s: float, predicted_s: float | None, stall_factor: float) -> Cause:
    """What the running time of a step counts as: what it carried, unless it took over `stall_factor` times its prediction."""
    if predicted_s is not None and actual_s > stall_factor * predicted_s:
        return Cause.STALL
    return load


class CauseClock:
    """Seconds of one engine by cause, since its recording began. Idle time counts as STALL."""

    def __init__(self) -> None:
        self._seconds = [0.0] * len(TIMED_CAUSES)

    def advance(self, span: StepSpan, cause: Cause) -> Reading:
        """Add one step whose running time counts as `cause`; returns the new reading."""
        self._seconds[_SLOT[Cause.STALL]] += span.idle_s
        self._seconds[_SLOT[cause]] += span.run_s
        decode_s, deflected_s, unplanned_s, stall_s = self._seconds
        return decode_s, deflected_s, unplanned_s, stall_s


def gap_cause(since: Reading, now: Reading) -> Cause:
    """The cause that took the longest part of the time between two readings."""
    parts = [after - before for before, after in zip(since, now, strict=True)]
    return TIMED_CAUSES[parts.index(max(parts))]
