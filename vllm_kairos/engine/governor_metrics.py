"""The governor's counts as Prometheus metrics on the server's own /metrics."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily

from vllm_kairos.core.governor import GovernorCounts
from vllm_kairos.engine.counts_collector import CountsCollector, plain_counters
from vllm_kairos.engine.governor_settings import EngineGovernorSettings
from vllm_kairos.engine.shared_file import read_json, shared_path

_COUNTERS = (
    ("kairos_governor_bounded_steps", "Steps whose prefill was bounded by a deadline.", "bounded_steps"),
    ("kairos_governor_late_steps", "Of those, steps that ended after the earliest deadline.", "late_steps"),
    ("kairos_governor_lost_steps", "Of those, steps whose decodes alone were predicted to miss it.", "lost_steps"),
    ("kairos_governor_starved", "Of those, steps that carried the floor of a prompt that had starved.", "starved_steps"),
)
_DECODER = msgspec.json.Decoder(GovernorCounts)


def governor_counts_path(vllm_config: Any, settings: EngineGovernorSettings, dp_rank: int) -> Path:
    """Where the counts of one data-parallel rank are."""
    return shared_path(vllm_config, "governor", settings.totals_file, dp_rank)


def read_governor_counts(path: Path) -> GovernorCounts | None:
    """What the engine last wrote; None before it did, or where the file is not ours to trust."""
    return read_json(path, _DECODER)


class GovernorCollector(CountsCollector[GovernorCounts]):
    """Those of each rank."""

    def read(self, path: Path) -> GovernorCounts | None:
        """What that rank's engine core last wrote."""
        return read_governor_counts(path)

    def metrics(self, engines: Sequence[tuple[str, GovernorCounts]]) -> Iterator[Any]:
        """The families."""
        return _metrics(engines)


def governor_collector_for(vllm_config: Any, settings: EngineGovernorSettings) -> GovernorCollector:
    """The collector of this server's engine cores."""
    return GovernorCollector.of_ranks(vllm_config, lambda rank: governor_counts_path(vllm_config, settings, rank))


def _metrics(engines: Sequence[tuple[str, GovernorCounts]]) -> Iterator[Any]:
    yield from plain_counters(_COUNTERS, engines)
    share = GaugeMetricFamily(
        "kairos_governor_share", "Share of the time to a deadline that a step may take.", labels=["engine"]
    )
    text = "Measured over predicted time of steps."
    correction = GaugeMetricFamily("kairos_governor_correction", text, labels=["engine", "regime"])
    for engine, counts in engines:
        share.add_metric([engine], counts.share)
        for regime, factor in counts.correction.items():
            correction.add_metric([engine, str(regime)], factor)
    yield from (share, correction)
