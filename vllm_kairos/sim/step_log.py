"""What an engine's steps took and what the running decodes felt of them."""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.sim.chunk import Chunk
from vllm_kairos.sim.leap import Leap


class Gaps(NamedTuple):
    """Gaps between tokens in a run of steps: at step j of `steps`, `decodes` gaps of `first_s + j * slope_s`."""

    cause: Cause
    decodes: int
    first_s: float
    slope_s: float
    steps: int


class StepLog:
    """Gaps between tokens by run of steps, with the sums that utilisation is made of."""

    def __init__(self) -> None:
        self.busy_s = 0.0
        self.steps = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self._counts = array("q")  # cause, decodes, steps
        self._times = array("d")  # first_s, slope_s

    def add_steps(self, leap: Leap, decodes: int, joiners: int, chunks: Sequence[Chunk]) -> None:
        """Note the steps of `leap`; `joiners` are the decodes in their first step here."""
        self.busy_s += leap.end_s(leap.steps) - leap.start_s
        self.steps += leap.steps
        self.decode_tokens += decodes * leap.steps
        self.prefill_tokens += sum(tokens for _, tokens in chunks)
        gaps = decodes - joiners  # a first token ends no gap, one after a migration another than this step's
        if gaps:
            self.add_gaps(Gaps(_cause(chunks), gaps, leap.first_s, leap.slope_s, leap.steps))

    def add_gaps(self, gaps: Gaps) -> None:
        """Note the gaps of one run of steps."""
        self._counts.extend((gaps.cause, gaps.decodes, gaps.steps))
        self._times.extend((gaps.first_s, gaps.slope_s))

    def __iter__(self) -> Iterator[Gaps]:
        counts, times = self._counts, self._times
        for at in range(len(counts) // 3):
            cause, decodes, steps = counts[3 * at : 3 * at + 3]
            first_s, slope_s = times[2 * at : 2 * at + 2]
            yield Gaps(Cause(cause), decodes, first_s, slope_s, steps)


def _cause(chunks: Sequence[Chunk]) -> Cause:
    """What made the gaps of a step as long as they are."""
    if not chunks:
        return Cause.DECODE
    return Cause.DEFLECTED if all(job.deflected for job, _ in chunks) else Cause.UNPLANNED
