"""The latency-model protocol: predict a step, a run of equal chunks, a queue, and a bound on a schedule."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from vllm_kairos.core.shapes import BatchShape


class Line(NamedTuple):
    """A step latency that changes linearly over a run of steps: `first_s + j * slope_s` at step j."""

    first_s: float
    slope_s: float


class PrefillTotals(NamedTuple):
    """What a sequence of prefill-only steps adds up to, however many prompts share a step."""

    steps: int
    tokens: int  # prompt tokens computed
    done_tokens: int  # sum over every prompt's chunks of the tokens computed before that chunk
    attention_work: float  # sum over chunks of n*p + n*n/2


class ScheduleBound(Protocol):
    """Bounds schedules of one prompt from below, in seconds; inf: surely infeasible. 0.0 is always valid."""

    def loose_s(self, loads: Sequence[tuple[int, int]]) -> Sequence[float]:
        """Bound the schedule beside each (B, K) of `loads`; asked of every decode node, so it must be cheap."""

    def tight_s(self, load: tuple[int, int]) -> float:
        """Bound the schedule beside one (B, K); asked of the nodes that the loose bounds leave."""


class StepLatencyModel(Protocol):
    """Predicts engine steps (paper Eq. 4). Must not decrease as the batch grows in any argument."""

    def step_s(self, batch: BatchShape) -> float:
        """Predict one engine step, in seconds."""

    def latency_s(self, running_decodes: int, kv_tokens: int, prefill_tokens: int, done_tokens: int) -> float:
        """Equal `step_s` on plain numbers that the caller vouches for; the decision's hot path."""

    def packed_step_s(self, running_decodes: int, kv_tokens: int, chunks: PrefillTotals) -> float:
        """Predict one step whose prefill tokens are those of several prompts; `chunks.steps` is 1.

        `kv_tokens` counts the computed tokens of those prompts too. Equals `latency_s` for one prompt.
        """

    def tokens_within(
        self, limit_s: float, running_decodes: int, kv_tokens: int, carried: PrefillTotals, done_tokens: int
    ) -> float | None:
        """How many tokens of one more prompt, behind `done_tokens`, bring a step to `limit_s` by `packed_step_s`.

        The step carries `carried` already; `kv_tokens` counts `done_tokens`, too. Not rounded; below 0: not even the
        step's fixed costs fit; None: no closed form, search.
        """

    def joined_steps_s(self, loads: Sequence[tuple[int, int]], kv_tokens: int) -> Sequence[float]:
        """Predict the decode step beside each (B, K) of `loads` once a request of `kv_tokens` has joined it."""

    def run_lines(self, first: BatchShape) -> tuple[Line, ...]:
        """Describe a run of steps that starts with `first` and repeats its chunk.

        Step j has `done_tokens + j * prefill_tokens` prompt tokens behind it and
        `kv_tokens + j * (prefill_tokens + running_decodes)` KV tokens, since each decode grows by
        one. The latency of step j is the largest of the returned lines at j.
        """

    def prefill_total_s(self, totals: PrefillTotals) -> float:
        """Predict the whole of a sequence of prefill-only steps, in seconds."""

    def schedule_bound(
        self, *, prompt_tokens: int, done_tokens: int, candidates: Sequence[int], limit_s: float
    ) -> ScheduleBound:
        """Return bounds on what `build_schedule` would predict for the same arguments."""

    def scaled(self, factor: float) -> "StepLatencyModel":
        """Return the model of an engine whose every step takes `factor` times as long; `factor` > 0."""

    def in_fitted_range(self, batch: BatchShape) -> bool:
        """Say whether `batch` lies inside the shapes the model was fitted on."""
