"""The counts of recorded steps as Prometheus metrics on the server's own /metrics."""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from vllm_kairos.engine.counts_collector import CountsCollector
from vllm_kairos.engine.step_settings import StepRecordSettings
from vllm_kairos.engine.step_totals_file import read_totals, totals_path
from vllm_kairos.steps.totals import GAP_BUCKETS_S, RATIO_BUCKETS, StepTotals

_Engines = Sequence[tuple[str, StepTotals]]


class StepCollector(CountsCollector[StepTotals]):
    """Those of each rank."""

    def read(self, path: Path) -> StepTotals | None:
        """What that rank's engine core last wrote."""
        return read_totals(path)

    def metrics(self, engines: _Engines) -> Iterator[Any]:
        """The families."""
        yield from _gap_metrics(engines)
        yield from _step_metrics(engines)


def collector_for(vllm_config: Any, record: StepRecordSettings) -> StepCollector:
    """The collector of this server's engine cores."""
    return StepCollector.of_ranks(vllm_config, lambda rank: totals_path(vllm_config, record, rank))


def _gap_metrics(engines: _Engines) -> Iterator[Any]:
    labels = ["engine", "cause"]
    gaps = CounterMetricFamily("kairos_token_gaps", "Gaps between tokens of running requests.", labels=labels)
    late = CounterMetricFamily("kairos_tbt_violations", "Gaps longer than the TBT objective.", labels=labels)
    times = HistogramMetricFamily("kairos_token_gap_seconds", "Length of gaps between tokens.", labels=labels)
    for engine, totals in engines:
        for cause, each in totals.causes.items():
            gaps.add_metric([engine, cause], each.gaps)
            late.add_metric([engine, cause], each.violations)
            times.add_metric([engine, cause], buckets(GAP_BUCKETS_S, each.buckets), each.gap_s)
    yield from (gaps, late, times)


def _step_metrics(engines: _Engines) -> Iterator[Any]:
    labels = ["engine", "regime"]
    steps = CounterMetricFamily("kairos_steps", "Engine steps.", labels=labels)
    actual = CounterMetricFamily("kairos_step_actual_seconds", "What predicted steps took.", labels=labels)
    predicted = CounterMetricFamily("kairos_step_predicted_seconds", "What they were predicted to take.", labels=labels)
    ratio = HistogramMetricFamily("kairos_step_time_ratio", "Actual over predicted time of steps.", labels=labels)
    dropped = CounterMetricFamily("kairos_step_lines_dropped", "Steps missing from the step file.", labels=["engine"])
    for engine, totals in engines:
        dropped.add_metric([engine], totals.dropped_lines)
        for regime, each in totals.regimes.items():
            steps.add_metric([engine, regime], each.steps)
            actual.add_metric([engine, regime], each.actual_s)
            predicted.add_metric([engine, regime], each.predicted_s)
            ratio.add_metric([engine, regime], buckets(RATIO_BUCKETS, each.buckets), each.ratio_sum)
    yield from (steps, actual, predicted, ratio, dropped)


def buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Prometheus's running sums from counts of each bucket apart."""
    names = [*(str(float(bound)) for bound in bounds), "+Inf"]
    return list(zip(names, accumulate(counts), strict=True))
