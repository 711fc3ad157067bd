"""Files of steps summed up: gaps and violations by cause, prediction error by regime."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

import numpy as np

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.regime import Regime
from vllm_kairos.steps.attribution import GAP_CAUSES
from vllm_kairos.steps.step_file import FileHeader, StepLine, read_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseFigures:
    """Gaps put down to one cause; quantiles are None where there are none."""

    gaps: int
    violations: int
    violation_share: float  # of all gaps, whatever their cause
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    longest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeFigures:
    """Steps of one regime; errors are |actual - predicted| / predicted over those that had a prediction."""

    steps: int
    predicted_steps: int
    mean_s: float | None
    error_p50: float | None
    error_p95: float | None
    ratio_p50: float | None  # actual / predicted: below 1 the prediction is too long
    ratio_p95: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What the steps of one node, or of several together, say."""

    nodes: tuple[str, ...]
    steps: int
    prefill_tokens: int
    deflected_tokens: int
    causes: dict[str, CauseFigures]
    total: CauseFigures
    regimes: dict[str, RegimeFigures]


@dataclass(slots=True)
class _Collected:
    """Plain columns of one node's steps. The objective is the file's own unless one was asked for."""

    steps: int = 0
    prefill_tokens: int = 0
    deflected_tokens: int = 0
    gaps: dict[str, list[tuple[float, int, bool]]] = field(default_factory=lambda: {c.label: [] for c in GAP_CAUSES})
    took: dict[Regime, list[tuple[float, float]]] = field(default_factory=lambda: {regime: [] for regime in Regime})

    def add(self, line: StepLine, tbt_slo_s: float) -> None:
        self.steps += 1
        self.prefill_tokens += line.n
        self.deflected_tokens += line.deflected
        self.took[Regime.of(line.B, line.n)].append((line.took, line.predicted or np.nan))
        for cause, count, gap_s in line.gaps:
            self.gaps.setdefault(cause, []).append((gap_s, count, gap_s > tbt_slo_s))


def report(
    paths: Iterable[Path], tbt_slo_s: float | None = None, *, within_s: tuple[float, float] = (-inf, inf)
) -> dict[str, StepReport]:
    """One report for each node in the files, by name, and where there are several nodes, or none, one for "all".

    Violations are of `tbt_slo_s`, by default of the objective each engine was recorded under. Steps count that ended
    within `within_s`, from one Unix time up to before another. Raises ConfigError for a file that cannot be read.
    """
    nodes: dict[str, _Collected] = {}
    for path in paths:
        for header, line in read_steps(path):
            if within_s[0] <= header.started_at_s + line.at < within_s[1]:
                nodes.setdefault(_node_name(header), _Collected()).add(line, tbt_slo_s or header.tbt_slo_s)
    reports = {name: _summed((name,), [collected]) for name, collected in nodes.items()}
    if len(nodes) != 1:
        reports["all"] = _summed(tuple(nodes), list(nodes.values()))
    return reports


def _node_name(header: FileHeader) -> str:
    return f"{header.node_id}/dp{header.dp_rank}" if header.dp_rank else header.node_id


def _summed(names: tuple[str, ...], parts: Sequence[_Collected]) -> StepReport:
    gaps = {label: [gap for part in parts for gap in part.gaps.get(label, ())] for label in _labels(parts)}
    every = [gap for each in gaps.values() for gap in each]
    count = sum(number for _, number, _ in every)
    took = {regime: [step for part in parts for step in part.took[regime]] for regime in Regime}
    return StepReport(
        nodes=names,
        steps=sum(part.steps for part in parts),
        prefill_tokens=sum(part.prefill_tokens for part in parts),
        deflected_tokens=sum(part.deflected_tokens for part in parts),
        causes={label: _cause_figures(each, count) for label, each in gaps.items()},
        total=_cause_figures(every, count),
        regimes={str(regime): _regime_figures(steps) for regime, steps in took.items()},
    )


def _labels(parts: Iterable[_Collected]) -> Iterator[str]:
    seen = {label for part in parts for label in part.gaps}
    return (cause.label for cause in Cause if cause.label in seen or cause in GAP_CAUSES)


def _cause_figures(gaps: Sequence[tuple[float, int, bool]], all_gaps: int) -> CauseFigures:
    late = sum(count for _, count, is_late in gaps if is_late)
    lengths, counts = [gap_s for gap_s, _, _ in gaps], [count for _, count, _ in gaps]
    p50_s, p95_s, p99_s, longest_s = _weighted_quantiles(lengths, counts, (0.5, 0.95, 0.99, 1.0))
    return CauseFigures(
        gaps=sum(counts),
        violations=late,
        violation_share=late / all_gaps if all_gaps else 0.0,
        p50_s=p50_s,
        p95_s=p95_s,
        p99_s=p99_s,
        longest_s=longest_s,
    )


def _regime_figures(steps: Sequence[tuple[float, float]]) -> RegimeFigures:
    table = np.asarray(steps, dtype=np.float64).reshape(-1, 2)
    with np.errstate(all="ignore"):  # a prediction of about nothing
        ratios = table[:, 0] / table[:, 1]
    ratios = ratios[np.isfinite(ratios)]
    errors = np.abs(ratios - 1.0)
    return RegimeFigures(
        steps=len(table),
        predicted_steps=len(ratios),
        mean_s=float(table[:, 0].mean()) if len(table) else None,
        error_p50=_quantile(errors, 0.5),
        error_p95=_quantile(errors, 0.95),
        ratio_p50=_quantile(ratios, 0.5),
        ratio_p95=_quantile(ratios, 0.95),
    )


def _quantile(values: "np.ndarray[tuple[int], np.dtype[np.float64]]", share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def _weighted_quantiles(values: Sequence[float], weights: Sequence[int], shares: Sequence[float]) -> list[float | None]:
    """The least value below or at which each share of the weight lies."""
    if not values:
        return [None] * len(shares)
    order = np.argsort(values)
    ordered, reached = np.asarray(values)[order], np.cumsum(np.asarray(weights)[order])
    at = np.searchsorted(reached, [share * reached[-1] for share in shares])
    return [float(value) for value in ordered[np.minimum(at, len(ordered) - 1)]]
