"""Figures of one run on either side, and how far apart the two sides are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import numpy as np

BOUNDS: Mapping[str, float] = {"ttft_p50_s": 0.15, "ttft_p95_s": 0.25, "deflected": 0.20}
"""Largest relative difference from the real side that counts as agreement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy under one load, once."""

    ttft_p50_s: float
    ttft_p95_s: float
    ttft_mean_s: float
    tbt_p50_s: float
    tbt_p95_s: float
    deflected: float
    duration_s: float


def figures(ttfts_s: Sequence[float], gaps_s: Sequence[float], *, deflected: int, duration_s: float) -> Figures:
    """Quantiles of the times to first tokens and of all gaps between tokens."""
    return Figures(
        ttft_p50_s=float(np.percentile(ttfts_s, 50)),
        ttft_p95_s=float(np.percentile(ttfts_s, 95)),
        ttft_mean_s=float(np.mean(ttfts_s)),
        tbt_p50_s=float(np.percentile(gaps_s, 50)),
        tbt_p95_s=float(np.percentile(gaps_s, 95)),
        deflected=deflected,
        duration_s=duration_s,
    )


def medians(runs: Sequence[Figures]) -> Figures:
    """Figure by figure over the runs."""
    return Figures(**{item.name: median(getattr(run, item.name) for run in runs) for item in fields(Figures)})


def relative_errors(simulated: Figures, real: Figures) -> dict[str, float]:
    """Of every figure, relative to the real one; of a count of nothing, to one."""
    errors = {}
    for item in fields(Figures):
        found, expected = getattr(simulated, item.name), getattr(real, item.name)
        errors[item.name] = (found - expected) / (expected or 1.0)
    return errors


def verdicts(errors: Mapping[str, float]) -> dict[str, bool]:
    """Whether each bounded figure is within its bound."""
    return {name: abs(errors[name]) <= bound for name, bound in BOUNDS.items()}


def rounded(value: Any) -> Any:
    """Every number of a JSON document to six digits after the point."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value
