"""The counts of leases as Prometheus metrics on the server's own /metrics."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily

from vllm_kairos.engine.counts_collector import CountsCollector, plain_counters
from vllm_kairos.engine.lease_counts import LeaseCounts, counts_path, read_counts
from vllm_kairos.engine.lease_settings import EngineLeaseSettings

_PLAIN = (
    ("kairos_leases_granted", "Leases granted, one per fresh report.", "granted"),
    ("kairos_lease_admissions", "Deflected requests admitted under a lease.", "admitted"),
    ("kairos_lease_prefill_tokens", "Prompt tokens of those.", "admitted_tokens"),
)
_BY_REASON = (
    ("kairos_leases_revoked", "Leases taken back before their time was over.", "revoked"),
    ("kairos_lease_refusals", "Deflected requests that their lease did not cover.", "refused"),
)


class LeaseCollector(CountsCollector[LeaseCounts]):
    """Those of each rank."""

    def read(self, path: Path) -> LeaseCounts | None:
        """What that rank's engine core last wrote."""
        return read_counts(path)

    def metrics(self, engines: Sequence[tuple[str, LeaseCounts]]) -> Iterator[Any]:
        """The families."""
        return _metrics(engines)


def lease_collector_for(vllm_config: Any, leases: EngineLeaseSettings) -> LeaseCollector:
    """The collector of this server's engine cores."""
    return LeaseCollector.of_ranks(vllm_config, lambda rank: counts_path(vllm_config, leases, rank))


def _metrics(engines: Sequence[tuple[str, LeaseCounts]]) -> Iterator[Any]:
    yield from plain_counters(_PLAIN, engines)
    for name, text, field in _BY_REASON:
        family = CounterMetricFamily(name, text, labels=["engine", "reason"])
        for engine, counts in engines:
            for reason, count in sorted(getattr(counts, field).items()):
                family.add_metric([engine, reason], count)
        yield family
