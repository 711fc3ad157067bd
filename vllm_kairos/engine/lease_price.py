"""The cost model that leases are reckoned by, held against measured steps."""

from collections.abc import Iterable

from vllm_kairos.core.governor import Correction
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.regime import Regime
from vllm_kairos.wire.messages import StepSample


class CorrectedModel:
    """A model whose steps take as much longer, or shorter, as those did that were measured lately."""

    def __init__(self, model: StepLatencyModel, *, correct: bool) -> None:
        self._model, self._correct = model, correct
        self._correction = Correction()
        self._scaled: tuple[float, StepLatencyModel] = (1.0, model)

    def learn(self, samples: Iterable[StepSample]) -> None:
        """Take note of measured steps."""
        if not self._correct:
            return
        for sample in samples:
            load = sample.running_decodes, sample.kv_tokens, sample.prefill_tokens, sample.done_tokens
            predicted_s = self._model.latency_s(*load)
            if predicted_s > 0 and sample.step_s > 0:
                self._correction.observe(Regime.of(sample.running_decodes, sample.prefill_tokens), sample.step_s / predicted_s)

    def beside(self, running_decodes: int) -> StepLatencyModel:
        """What predicts steps with prefill beside so many decodes."""
        factor = self._correction.factors[Regime.MIXED if running_decodes else Regime.PREFILL]
        if factor != self._scaled[0]:
            self._scaled = (factor, self._model.scaled(factor))
        return self._scaled[1]
