"""One engine step as the engine's thread hands it over: read off, with nothing worked out.

Made in every step, these are structs: named tuples and dataclasses take several times as long to make.
"""

from collections.abc import Sequence

import msgspec

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.steps.gap_tracker import Mark, Wait

NO_CHUNKS = PrefillTotals(0, 0, 0, 0.0)


class StepLoad(msgspec.Struct, frozen=True):
    """What one step carries. `kv_tokens` counts what all its sequences hold before it, prompts too."""

    running_decodes: int
    kv_tokens: int
    chunks: PrefillTotals
    deflected_tokens: int
    unfinished: frozenset[str]  # prompts that will not be through after it, so that no token comes out for them


class RecordedStep(msgspec.Struct, frozen=True):
    """A step whose output was taken in at `end`, which ended `waits` for a token."""

    number: int
    load: StepLoad
    handed_over_s: float
    follows: bool  # it has a request in common with the step before
    end: Mark
    waits: Sequence[Wait]
