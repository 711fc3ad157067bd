"""What became of one request, judged by what its client saw and what the model would have said: pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from vllm_kairos.replay.sample import Sample


class Verdict(StrEnum):
    """Best to worst. Only the last two leave a client with less than it believes, or with nothing to go by."""

    RIGHT = "right"  # whole, and word for word what the model says
    TOLD = "told"  # failed with an HTTP status or an SSE error event
    BROKEN = "broken"  # connection refused, or broken off inside the answer: every client raises, none learns why
    LOST = "lost"  # ended short as if whole, or never ended
    WRONG = "wrong"  # words that the model does not say, in a whole answer or before it failed


_BROKEN = frozenset({"connect", "no_answer", "cut_off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One request, its verdict, and whether it had to wait so long that the failure shows."""

    sample: Sample
    verdict: Verdict

    @property
    def due_s(self) -> float:
        return self.sample.due_s


def judge(sample: Sample, said: Sequence[str], expected: Sequence[str]) -> Verdict:
    """The verdict on an answer that `said` these words where the model says `expected`."""
    if list(said) != list(expected[: len(said)]):
        return Verdict.WRONG
    if sample.ok:
        return Verdict.RIGHT if len(said) == len(expected) else Verdict.LOST
    if sample.error == "error_event" or sample.error.startswith("http_"):
        return Verdict.TOLD
    return Verdict.BROKEN if sample.error in _BROKEN else Verdict.LOST
