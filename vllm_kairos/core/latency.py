"""The latency-model protocol: one method to predict a step, one to predict a run of equal chunks."""

from dataclasses import dataclass
from typing import Protocol

from vllm_kairos.core.shapes import BatchShape


@dataclass(frozen=True, slots=True)
class Line:
    """A step latency that changes linearly over a run of steps: `first_s + j * slope_s` at step j."""

    first_s: float
    slope_s: float


class StepLatencyModel(Protocol):
    """Predicts engine steps (paper Eq. 4). Must not decrease as the batch grows in any argument."""

    def step_s(self, batch: BatchShape) -> float:
        """Predict one engine step, in seconds."""

    def run_lines(self, first: BatchShape) -> tuple[Line, ...]:
        """Describe a run of steps that starts with `first` and repeats its chunk.

        Step j has `done_tokens + j * prefill_tokens` prompt tokens behind it and
        `kv_tokens + j * (prefill_tokens + running_decodes)` KV tokens, since each decode grows by
        one. The latency of step j is the largest of the returned lines at j.
        """

    def in_fitted_range(self, batch: BatchShape) -> bool:
        """Say whether `batch` lies inside the shapes the model was fitted on."""
