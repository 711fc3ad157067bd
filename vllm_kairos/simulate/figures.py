"""From the outcome of one simulation to its figures, pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from vllm_kairos.core.decision import Assign
from vllm_kairos.sim.record import Objectives, RequestRecord
from vllm_kairos.sim.simulator import Outcome
from vllm_kairos.simulate.gaps import GapFigures, gap_figures

ERROR_RANKS = tuple(range(0, 101, 2))
"""Percentiles of a decision's error that are kept, for its distribution."""

PARTS = {
    "router_s": "router",
    "prefill_queue_s": "prefill queue",
    "prefill_exec_s": "prefill",
    "transfer_s": "KV transfer",
    "decode_wait_s": "decode wait",
}
"""What a TTFT is made of (`Breakdown`), by field, as reports call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Of one quantity over requests; None where there is none."""

    p50: float | None
    p95: float | None
    p99: float | None
    mean: float | None
    most: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quantiles":
        """Linear between ranks."""
        if not len(values):
            return cls(p50=None, p95=None, p99=None, mean=None, most=None)
        p50, p95, p99, most = (float(value) for value in np.percentile(values, (50, 95, 99, 100)))
        return cls(p50=p50, p95=p95, p99=p99, mean=float(np.mean(values)), most=most)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionError:
    """How far the predicted TTFT was from what came: |predicted - actual| / actual."""

    requests: int
    median: float | None
    p90: float | None
    bias: float | None  # median of (predicted - actual) / actual
    by_percentile: tuple[float, ...]  # of the absolute error, at ERROR_RANKS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """What one engine did."""

    role: str
    busy_share: float
    steps: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One simulation in numbers; times in seconds, shares of 1.

    A request attains its objectives as `RequestRecord.attains` says; one that was rejected attains none. Latencies
    are of requests that were answered. `breakdown` is over all of these, `breakdown_kept` over those with a prefill leg.
    """

    requests: int
    rejected: int
    rejected_reasons: dict[str, int]
    ttft_s: Quantiles
    tbt_s: GapFigures
    tpot_s: Quantiles
    slo_attainment: float
    ttft_attainment: float
    tbt_attainment: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    deflected: int
    deflected_reasons: dict[str, int]
    kept_reasons: dict[str, int]
    breakdown: dict[str, Quantiles]
    breakdown_kept: dict[str, Quantiles]
    error_kept: PredictionError
    error_deflected: PredictionError
    transfers: int
    transferred_bytes: int
    preemptions: int
    prefix_hit_tokens: int
    prompt_tokens: int
    out_of_range_share: float
    """Of the decisions: some prediction lay outside the shapes that the profile was fitted on."""
    nodes: dict[str, NodeFigures]
    events: int
    simulated_s: float

    def as_json(self) -> dict[str, Any]:
        """Nested, and with `violation_share` spelled out."""
        document = asdict(self)
        document["tbt_s"]["violation_share"] = self.tbt_s.violation_share
        return document


def figures_of(outcome: Outcome, objectives: Objectives) -> Figures:
    """Everything the reports show about one simulation."""
    records = outcome.requests
    good = [record for record in records if record.ok]
    span_s = _span_s(good)
    output_tokens = sum(record.request.output_tokens for record in good)
    prompt_tokens = sum(record.request.prompt_tokens for record in good)
    tbt_s = gap_figures(chain.from_iterable(engine.gaps for engine in outcome.engines), objectives.tbt_s)
    kept = [record for record in good if not record.deflected]
    return Figures(
        requests=len(records),
        **_decisions(records),
        **_attainments(records, objectives),
        ttft_s=Quantiles.of([record.ttft_s for record in good]),
        tbt_s=tbt_s,
        tpot_s=Quantiles.of([record.tpot_s for record in good if record.tpot_s == record.tpot_s]),
        output_tokens_per_s=_per(output_tokens, span_s),
        total_tokens_per_s=_per(output_tokens + prompt_tokens, span_s),
        requests_per_s=_per(len(good), span_s),
        breakdown=_breakdown(good),
        breakdown_kept=_breakdown(kept),
        error_kept=_error(kept),
        error_deflected=_error(record for record in good if record.deflected),
        transfers=outcome.transfers,
        transferred_bytes=outcome.transferred_bytes,
        preemptions=sum(engine.preemptions for engine in outcome.engines),
        prefix_hit_tokens=sum(record.hit_tokens for record in good),
        prompt_tokens=prompt_tokens,
        nodes=dict(_nodes(outcome)),
        events=outcome.events,
        simulated_s=outcome.duration_s,
    )


def _span_s(good: Sequence[RequestRecord]) -> float:
    """From the first arrival to the last token."""
    if not good:
        return 0.0
    return max(record.finished_s for record in good) - min(record.arrival_s for record in good)


def _per(amount: float, span_s: float) -> float:
    return amount / span_s if span_s > 0 else 0.0


def _decisions(records: Sequence[RequestRecord]) -> dict[str, Any]:
    assigned = [record.decision for record in records if isinstance(record.decision, Assign)]
    deflected = [decision for decision in assigned if decision.prefill_node is None]
    kept = [decision for decision in assigned if decision.prefill_node is not None]
    refused = [record.decision for record in records if not isinstance(record.decision, Assign)]
    outside = sum(not decision.in_fitted_range for decision in assigned)
    return {
        "rejected": len(refused),
        "rejected_reasons": _counted(decision.reason for decision in refused),
        "deflected": len(deflected),
        "deflected_reasons": _counted(decision.reason for decision in deflected),
        "kept_reasons": _counted(decision.reason for decision in kept),
        "out_of_range_share": outside / len(assigned) if assigned else 0.0,
    }


def _counted(reasons: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(str(reason) for reason in reasons).items()))


def _attainments(records: Sequence[RequestRecord], objectives: Objectives) -> dict[str, Any]:
    both = sum(record.attains(objectives) for record in records)
    ttft = sum(objectives.attained_ttft(record) for record in records)
    tbt = sum(objectives.attained_tpot(record) for record in records)
    count = max(1, len(records))
    return {"slo_attainment": both / count, "ttft_attainment": ttft / count, "tbt_attainment": tbt / count}


def _breakdown(records: Sequence[RequestRecord]) -> dict[str, Quantiles]:
    parts = [record.breakdown for record in records]
    return {name: Quantiles.of([getattr(part, name) for part in parts]) for name in PARTS}


def _error(records: Iterable[RequestRecord]) -> PredictionError:
    signed = np.array(list(_relative_errors(records)))
    if not len(signed):
        return PredictionError(requests=0, median=None, p90=None, bias=None, by_percentile=())
    absolute = np.abs(signed)
    return PredictionError(
        requests=len(signed),
        median=float(np.median(absolute)),
        p90=float(np.percentile(absolute, 90)),
        bias=float(np.median(signed)),
        by_percentile=tuple(float(value) for value in np.percentile(absolute, ERROR_RANKS)),
    )


def _relative_errors(records: Iterable[RequestRecord]) -> Iterator[float]:
    for record in records:
        predicted_s = record.decision.predicted_ttft_s if isinstance(record.decision, Assign) else None
        if predicted_s is not None and record.ttft_s > 0:
            yield (predicted_s - record.ttft_s) / record.ttft_s


def _nodes(outcome: Outcome) -> Iterator[tuple[str, NodeFigures]]:
    for engine in outcome.engines:
        yield (
            engine.name,
            NodeFigures(
                role=str(engine.role),
                busy_share=engine.busy_s / outcome.duration_s if outcome.duration_s else 0.0,
                steps=engine.steps,
                prefill_tokens=engine.prefill_tokens,
                decode_tokens=engine.decode_tokens,
                preemptions=engine.preemptions,
            ),
        )


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested figures as one row: keys joined by dots, lists left out."""
    row: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            row |= flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            row[f"{prefix}{key}"] = value
    return row
