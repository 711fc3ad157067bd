"""The deadline governor: prefill of each step sized by the deadlines of running decodes."""

from vllm_kairos.core.governor.bound import BoundedStep, StepBound
from vllm_kairos.core.governor.chunk import NO_CHUNKS, Prompt, largest_chunk, with_chunk
from vllm_kairos.core.governor.correction import Correction, MeasuredMargin
from vllm_kairos.core.governor.counts import GovernorCounts
from vllm_kairos.core.governor.deadlines import Deadlines, Moment, Objective
from vllm_kairos.core.governor.governor import Flight, Governor, Queue
from vllm_kairos.core.governor.price import Price, StepPrice
from vllm_kairos.core.governor.settings import MEASURED, GovernorMode, GovernorSettings

__all__ = [
    "MEASURED",
    "NO_CHUNKS",
    "BoundedStep",
    "Correction",
    "Deadlines",
    "Flight",
    "Governor",
    "GovernorCounts",
    "GovernorMode",
    "GovernorSettings",
    "MeasuredMargin",
    "Moment",
    "Objective",
    "Price",
    "Prompt",
    "Queue",
    "StepBound",
    "StepPrice",
    "largest_chunk",
    "with_chunk",
]
