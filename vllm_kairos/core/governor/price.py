"""What a step costs by the chunks it carries beside its decodes."""

from typing import Protocol

from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel


class Price(Protocol):
    """Prices the chunks of one step, all together; must not decrease with their tokens."""

    def step_s(self, chunks: PrefillTotals) -> float:
        """The time that the step takes with them, in seconds."""

    def tokens_within(self, limit_s: float, carried: PrefillTotals, done_tokens: int) -> float | None:
        """How many tokens of one more prompt, behind `done_tokens`, bring the step to `limit_s`; None: search."""


class StepPrice:
    """`factor` times what `model` predicts beside decodes with `kv_tokens` of KV, but no less than what these take alone."""

    __slots__ = ("_factor", "_kv_tokens", "_model", "_running_decodes", "decodes_s")

    def __init__(
        self, model: StepLatencyModel, running_decodes: int, kv_tokens: int, factor: float = 1.0, decodes_s: float = 0.0
    ) -> None:
        self._model, self._running_decodes, self._kv_tokens = model, running_decodes, kv_tokens
        self._factor, self.decodes_s = factor, decodes_s

    def step_s(self, chunks: PrefillTotals) -> float:
        kv_tokens = self._kv_tokens + chunks.done_tokens
        priced_s = self._factor * self._model.packed_step_s(self._running_decodes, kv_tokens, chunks)
        return priced_s if priced_s > self.decodes_s else self.decodes_s

    def tokens_within(self, limit_s: float, carried: PrefillTotals, done_tokens: int) -> float | None:
        if self.decodes_s > limit_s:
            return -1.0
        kv_tokens = self._kv_tokens + carried.done_tokens + done_tokens
        return self._model.tokens_within(limit_s / self._factor, self._running_decodes, kv_tokens, carried, done_tokens)
