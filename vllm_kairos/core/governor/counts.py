"""What a governor has done since it began, and how far its model is off."""

from dataclasses import dataclass, field

from vllm_kairos.core.regime import Regime


@dataclass(slots=True, kw_only=True)
class GovernorCounts:
    """Steps with prefill beside decodes that had deadlines, and by what predictions are corrected."""

    bounded_steps: int = 0
    late_steps: int = 0
    """Of those, how many ended after the earliest deadline: misses that a smaller chunk might have avoided, or not."""
    lost_steps: int = 0
    """Of those, how many carried the floor since decodes alone were predicted to miss it."""
    starved_steps: int = 0
    """Of those, how many carried the floor since the first prompt had starved."""
    share: float = 1.0
    """What share of the time to a deadline they may take."""
    correction: dict[Regime, float] = field(default_factory=lambda: dict.fromkeys(Regime, 1.0))
    """Measured over predicted time."""
