"""What a step computes of prompts."""

from collections.abc import Sequence
from typing import NamedTuple

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.sim.job import Job


class Chunk(NamedTuple):
    """What one prompt gets of a step."""

    job: Job
    tokens: int


def totals_of(chunks: Sequence[Chunk]) -> PrefillTotals:
    """Features of one step's chunks; each job's computed tokens count its chunk already."""
    tokens = done = 0
    work = 0.0
    for job, size in chunks:
        before = job.computed_tokens - size
        tokens += size
        done += before
        work += size * before + size * size * 0.5
    return PrefillTotals(1, tokens, done, work)
