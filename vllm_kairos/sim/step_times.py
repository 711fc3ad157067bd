"""How long an engine's steps really take."""

import random
from collections.abc import Sequence
from math import exp

from vllm_kairos.sim.chunk import Chunk, totals_of
from vllm_kairos.sim.decodes import DecodeGroup
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.leap import Leap


class StepTimes:
    """The model's predictions times the engine's factor and noise."""

    def __init__(self, spec: EngineSpec, rng: random.Random) -> None:
        self._spec, self._rng = spec, rng

    def step(self, now_s: float, decodes: DecodeGroup, chunks: Sequence[Chunk]) -> Leap:
        """One step that begins at `now_s`."""
        model, count = self._spec.model, len(decodes)
        if not chunks:
            return Leap(now_s, model.latency_s(count, decodes.kv_tokens, 0, 0) * self._factor(), 0.0, 1)
        totals = totals_of(chunks)
        step_s = model.packed_step_s(count, decodes.kv_tokens + totals.done_tokens, totals)
        return Leap(now_s, step_s * self._factor(), 0.0, 1)

    def run(self, now_s: float, decodes: DecodeGroup, steps: int) -> Leap:
        """That many steps of the same decodes alone."""
        model, count, kv_tokens = self._spec.model, len(decodes), decodes.kv_tokens
        first_s = model.latency_s(count, kv_tokens, 0, 0)
        second_s = model.latency_s(count, kv_tokens + count, 0, 0)
        factor = self._factor()
        return Leap(now_s, first_s * factor, (second_s - first_s) * factor, steps)

    def _factor(self) -> float:
        sigma = self._spec.step_noise
        noise = exp(self._rng.gauss(0.0, sigma) - sigma * sigma / 2) if sigma else 1.0
        return self._spec.step_factor * noise
