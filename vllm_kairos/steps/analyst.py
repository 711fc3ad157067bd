"""Works recorded steps out, in their order: prediction, cause, gaps, totals, and the line of the file."""

from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel
from vllm_kairos.core.regime import Regime
from vllm_kairos.steps.attribution import CauseClock, StepSpan, carried, step_cause
from vllm_kairos.steps.gap_tracker import gap_of
from vllm_kairos.steps.recorded import RecordedStep, StepLoad
from vllm_kairos.steps.step_file import StepLine
from vllm_kairos.steps.totals import StepTotals


class StepAnalyst:
    """Takes each step once. Its cost is not the engine's: it belongs on another thread, one at a time."""

    def __init__(
        self, model: StepLatencyModel | None, totals: StepTotals, *, tbt_slo_s: float, stall_factor: float, started_s: float
    ) -> None:
        self._model, self.totals = model, totals
        self._tbt_slo_s, self._stall_factor = tbt_slo_s, stall_factor
        self._started_s = self._last_end_s = started_s
        self._by_cause = CauseClock()

    def take(self, step: RecordedStep) -> StepLine:
        """Count the step next to the last one taken; returns its line."""
        load, span = step.load, self._span(step)
        predicted_s, took_s, prefill_tokens = self._predicted_s(load), span.actual_s, load.chunks.tokens
        content = carried(load.deflected_tokens, prefill_tokens - load.deflected_tokens)
        cause = step_cause(content, took_s, predicted_s, self._stall_factor)
        step.end.clock = self._by_cause.advance(span, cause)
        gaps = [gap_of(wait, step.end) for wait in step.waits]
        self.totals.add_step(Regime.of(load.running_decodes, prefill_tokens), took_s, predicted_s)
        self.totals.add_gaps(gaps, self._tbt_slo_s)
        return StepLine(
            step=step.number,
            at=step.end.at_s - self._started_s,
            B=load.running_decodes,
            K=load.kv_tokens,
            n=prefill_tokens,
            p=load.chunks.done_tokens,
            work=_packed_work(load.chunks),
            deflected=load.deflected_tokens,
            predicted=predicted_s,
            took=took_s,
            idle=span.idle_s,
            run=span.run_s,
            cause=cause.label,
            gaps=[(gap.cause.label, gap.requests, gap.gap_s) for gap in gaps],
        )

    def _span(self, step: RecordedStep) -> StepSpan:
        begun_s, end_s = max(step.handed_over_s, self._last_end_s), step.end.at_s
        span = StepSpan(begun_s - self._last_end_s, end_s - begun_s, step.follows)
        self._last_end_s = end_s
        return span

    def _predicted_s(self, load: StepLoad) -> float | None:
        if self._model is None:
            return None
        return self._model.packed_step_s(load.running_decodes, load.kv_tokens, load.chunks)


def _packed_work(chunks: PrefillTotals) -> float | None:
    """Their attention work where it is not that of one chunk."""
    of_one = chunks.tokens * chunks.done_tokens + chunks.tokens * chunks.tokens * 0.5
    return None if chunks.attention_work == of_one else chunks.attention_work
