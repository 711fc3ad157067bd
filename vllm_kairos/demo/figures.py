"""From samples to the figures of one run, pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vllm_kairos.demo.client import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What the demo counts as good enough."""

    ttft_s: float = 4.0
    tbt_s: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """KV pulls of one run, from the servers' and the router's own counters."""

    pulls: int
    pulled_bytes: int
    skipped: int
    skipped_bytes: int


def latency_figures(samples: Sequence[Sample], objectives: Objectives) -> dict[str, Any]:
    """TTFT and TBT figures in seconds; a failed request counts as an error and as missing its objectives.

    A request attains its objectives when its first token is in time and the mean of its gaps is.
    """
    good = [sample for sample in samples if not sample.error]
    ttfts_s = np.array([sample.ttft_s for sample in good])
    gaps_s = np.array([gap for sample in good for gap in sample.gaps_s])
    violations = int((gaps_s > objectives.tbt_s).sum())
    return {
        "requests": len(samples),
        "errors": len(samples) - len(good),
        "error_examples": [sample.error for sample in samples if sample.error][:3],
        "ttft_s": {"p50": _at(ttfts_s, 50), "p95": _at(ttfts_s, 95), "mean": _mean(ttfts_s), "max": _at(ttfts_s, 100)},
        "tbt_s": {"p50": _at(gaps_s, 50), "p95": _at(gaps_s, 95), "p99": _at(gaps_s, 99), "max": _at(gaps_s, 100)},
        "tbt_gaps": len(gaps_s),
        "tbt_violations": violations,
        "tbt_violation_share": violations / len(gaps_s) if len(gaps_s) else 0.0,
        "slo_attainment": sum(_attains(sample, objectives) for sample in good) / len(samples) if samples else 0.0,
    }


def decision_figures(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the router's access log says: routes with their reasons, and how good its predictions were."""
    deflected = [record for record in records if record.get("decision") == "decode-only"]
    kept = [record for record in records if record.get("decision") == "prefill-decode"]
    return {
        "deflected": len(deflected),
        "kept": len(kept),
        "deflected_reasons": dict(Counter(str(record.get("reason", "")) for record in deflected)),
        "kept_reasons": dict(Counter(str(record.get("reason", "")) for record in kept)),
        "retries": sum(int(record.get("retries", 0)) for record in records),
        "ttft_prediction": {
            "deflected": _prediction_error(deflected, "predicted_local_ttft_s"),
            "kept": _prediction_error(kept, "predicted_remote_ttft_s"),
        },
    }


def transfer_figures(transfers: Transfers) -> dict[str, int]:
    """KV moved and KV that deflection made needless."""
    return {
        "transfers": transfers.pulls,
        "transferred_bytes": transfers.pulled_bytes,
        "transfers_skipped": transfers.skipped,
        "transfer_bytes_skipped": transfers.skipped_bytes,
    }


def _attains(sample: Sample, objectives: Objectives) -> bool:
    gaps_s = sample.gaps_s
    return sample.ttft_s <= objectives.ttft_s and (not gaps_s or sum(gaps_s) / len(gaps_s) <= objectives.tbt_s)


def _prediction_error(records: Sequence[Mapping[str, Any]], predicted: str) -> dict[str, Any]:
    pairs = [(record[predicted], record["ttft_s"]) for record in records if predicted in record and record.get("ttft_s")]
    errors = np.array([abs(guess - actual) / actual for guess, actual in pairs])
    return {"requests": len(pairs), "median_relative_error": _at(errors, 50), "mean_relative_error": _mean(errors)}


def _at(values: np.ndarray, percentile: float) -> float | None:
    return round(float(np.percentile(values, percentile)), 4) if len(values) else None


def _mean(values: np.ndarray) -> float | None:
    return round(float(values.mean()), 4) if len(values) else None
