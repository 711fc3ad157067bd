"""Chunk schedules: how a decode node runs a prompt without any decode missing its TBT objective."""

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_kairos.errors import StateError


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`steps` consecutive engine steps of `batch_tokens` tokens each (chi), decodes included."""

    batch_tokens: int
    steps: int

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 or self.steps < 1:
            raise StateError(f"chunk run: batch_tokens and steps must be >= 1, got {self.batch_tokens} and {self.steps}")


@dataclass(frozen=True, slots=True)
class ChunkSchedule:
    """Total batch tokens per step, in order, as runs of equal chunks; the last chunk repeats if needed."""

    runs: tuple[ChunkRun, ...]

    @property
    def steps(self) -> int:
        return sum(run.steps for run in self.runs)

    def batch_tokens(self) -> Iterator[int]:
        """Yield chi of every step."""
        for run in self.runs:
            for _ in range(run.steps):
                yield run.batch_tokens
