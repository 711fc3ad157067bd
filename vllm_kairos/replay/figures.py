"""From samples to figures, pure. Names and meanings are those of `kairos simulate` where both have a figure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vllm_kairos.replay.open_loop import INTERRUPTED
from vllm_kairos.replay.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What counts as good enough where a request does not say itself."""

    ttft_s: float
    tbt_s: float

    def ttft_met(self, sample: Sample) -> bool:
        """Say whether the first token came in time, counted from when the request was due."""
        return sample.ok and sample.ttft_s is not None and sample.ttft_s <= (sample.request.ttft_slo_s or self.ttft_s)

    def tbt_met(self, sample: Sample) -> bool:
        """Say whether the mean gap is short enough; a single token has none."""
        return sample.ok and (sample.tpot_s is None or sample.tpot_s <= self.tbt_limit_s(sample))

    def tbt_limit_s(self, sample: Sample) -> float:
        return sample.request.tbt_slo_s or self.tbt_s

    def attains(self, sample: Sample) -> bool:
        """Say whether both are met."""
        return self.ttft_met(sample) and self.tbt_met(sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of one quantity; None where there is none."""

    count: int
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None
    most: float | None = None

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Quantiles":
        """Linear between ranks; None is left out."""
        known = np.array([value for value in values if value is not None])
        if not len(known):
            return cls(count=0)
        p50, p90, p95, p99, most = (float(value) for value in np.percentile(known, (50, 90, 95, 99, 100)))
        return cls(count=len(known), p50=p50, p90=p90, p95=p95, p99=p99, mean=float(known.mean()), most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One replay in numbers; times in seconds, shares of 1, latencies of requests with a whole answer.

    `requests` ended after the ramp; those sent in it are `warm_up`. Interrupted and unsent ones are in neither.
    """

    requests: int
    failed: int
    errors: dict[str, int]
    error_examples: dict[str, str]
    warm_up: int
    interrupted: int
    not_sent: int
    ttft_s: Quantiles
    ttft_from_sent_s: Quantiles
    tbt_s: Quantiles
    tbt_violations: int
    tpot_s: Quantiles
    e2e_s: Quantiles
    slo_attainment: float
    ttft_attainment: float
    tbt_attainment: float
    goodput_rps: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    offered_rps: float | None
    prompt_tokens: int
    """As the trace has them."""
    prompt_tokens_served: int
    """As the server counted them."""
    prompt_tokens_over: Quantiles
    """The server's count less the trace's, per request."""
    cached_tokens: int
    output_tokens: int
    output_length_mismatches: int
    tokens_per_arrival: float | None
    """Above 1 several tokens come at one moment, and TBT is not a gap between single tokens."""
    decisions_told: int
    """Answers that said what the router decided; 0 without `--decision-headers`, and `deflected` then means nothing."""
    deflected: int
    deflected_reasons: dict[str, int]
    kept_reasons: dict[str, int]
    send_lag_s: Quantiles
    client_lag_s: Quantiles
    """How late the client's own timers fired while it ran: chunks may have been read so late."""

    @property
    def tbt_violation_share(self) -> float:
        return self.tbt_violations / self.tbt_s.count if self.tbt_s.count else 0.0

    def as_json(self) -> dict[str, Any]:
        """Nested, and with `tbt_violation_share` spelled out."""
        return asdict(self) | {"tbt_violation_share": self.tbt_violation_share}


def figures_of(
    samples: Sequence[Sample],
    objectives: Objectives,
    *,
    ramp_s: float = 0.0,
    not_sent: int = 0,
    client_lags_s: Sequence[float] = (),
) -> Figures:
    """Everything the reports show about one replay."""
    ended = [sample for sample in samples if sample.error != INTERRUPTED]
    measured = [sample for sample in ended if sample.due_s >= ramp_s]
    good = [sample for sample in measured if sample.ok]
    return Figures(
        requests=len(measured),
        **_errors(measured),
        warm_up=len(ended) - len(measured),
        interrupted=len(samples) - len(ended),
        not_sent=not_sent,
        **_latencies(good, objectives),
        **_attainments(measured, objectives),
        **_throughput(measured, good, objectives),
        **_token_counts(good),
        **_decisions(measured),
        send_lag_s=Quantiles.of(sample.send_lag_s for sample in samples),
        client_lag_s=Quantiles.of(client_lags_s),
    )


def _errors(measured: Sequence[Sample]) -> dict[str, Any]:
    failed = [sample for sample in measured if not sample.ok]
    examples: dict[str, str] = {}
    for sample in failed:
        examples.setdefault(sample.error, sample.detail)
    errors = dict(sorted(Counter(sample.error for sample in failed).items()))
    return {"failed": len(failed), "errors": errors, "error_examples": dict(sorted(examples.items()))}


def _latencies(good: Sequence[Sample], objectives: Objectives) -> dict[str, Any]:
    return {
        "ttft_s": Quantiles.of(sample.ttft_s for sample in good),
        "ttft_from_sent_s": Quantiles.of(sample.ttft_from_sent_s for sample in good),
        "tbt_s": Quantiles.of(gap_s for sample in good for gap_s in sample.gaps_s),
        "tbt_violations": sum(gap_s > objectives.tbt_limit_s(sample) for sample in good for gap_s in sample.gaps_s),
        "tpot_s": Quantiles.of(sample.tpot_s for sample in good),
        "e2e_s": Quantiles.of(sample.e2e_s for sample in good),
    }


def _attainments(measured: Sequence[Sample], objectives: Objectives) -> dict[str, Any]:
    count = max(1, len(measured))
    return {
        "slo_attainment": sum(map(objectives.attains, measured)) / count,
        "ttft_attainment": sum(map(objectives.ttft_met, measured)) / count,
        "tbt_attainment": sum(map(objectives.tbt_met, measured)) / count,
    }


def _throughput(measured: Sequence[Sample], good: Sequence[Sample], objectives: Objectives) -> dict[str, Any]:
    """Per second from the first moment a request was due to the last token of a whole answer."""
    span_s = max((sample.arrivals_s[-1] for sample in good), default=0.0) - min(
        (sample.due_s for sample in measured), default=0.0
    )
    offered_s = max((sample.due_s for sample in measured), default=0.0) - min((s.due_s for s in measured), default=0.0)
    output_tokens = sum(sample.output_tokens for sample in good)
    prompt_tokens = sum(sample.request.prompt_tokens for sample in good)
    return {
        "goodput_rps": _per(sum(map(objectives.attains, good)), span_s),
        "requests_per_s": _per(len(good), span_s),
        "output_tokens_per_s": _per(output_tokens, span_s),
        "total_tokens_per_s": _per(output_tokens + prompt_tokens, span_s),
        "offered_rps": (len(measured) - 1) / offered_s if offered_s > 0 else None,
    }


def _per(amount: float, span_s: float) -> float:
    return amount / span_s if span_s > 0 else 0.0


def _token_counts(good: Sequence[Sample]) -> dict[str, Any]:
    arrivals = sum(len(sample.arrivals_s) for sample in good)
    output_tokens = sum(sample.output_tokens for sample in good)
    return {
        "prompt_tokens": sum(sample.request.prompt_tokens for sample in good),
        "prompt_tokens_served": sum(sample.prompt_tokens or 0 for sample in good),
        "prompt_tokens_over": Quantiles.of(_over(sample) for sample in good),
        "cached_tokens": sum(sample.cached_tokens or 0 for sample in good),
        "output_tokens": output_tokens,
        "output_length_mismatches": sum(not sample.has_wanted_length for sample in good),
        "tokens_per_arrival": output_tokens / arrivals if arrivals else None,
    }


def _over(sample: Sample) -> int | None:
    return None if sample.prompt_tokens is None else sample.prompt_tokens - sample.request.prompt_tokens


def _decisions(measured: Sequence[Sample]) -> dict[str, Any]:
    told = [sample.decision for sample in measured if "route" in sample.decision]
    deflected = [decision for decision in told if decision["route"] == "decode-only"]
    kept = [decision for decision in told if decision["route"] != "decode-only"]
    return {
        "decisions_told": len(told),
        "deflected": len(deflected),
        "deflected_reasons": _counted(decision.get("reason", "") for decision in deflected),
        "kept_reasons": _counted(decision.get("reason", "") for decision in kept),
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))
