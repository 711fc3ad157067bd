"""The claim that the policy table has to bear out, checked cell by cell."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

COMPLIANT_VIOLATIONS = 0.005
"""An arm with at most this share of gaps over the TBT objective counts as compliant."""
MARGIN = 0.05

_CELL = ("trace", "profile", "load")
Row = Mapping[str, Any]


def check(rows: Iterable[Row], *, policy: str = "kairos", baselines: Sequence[str] = ("never", "always")) -> dict[str, Any]:
    """Whether `policy` is never worse than the best compliant baseline by more than `MARGIN` on P95 TTFT."""
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(tuple(row[key] for key in _CELL), {})[row["policy"]] = row
    verdicts = [_verdict(key, arms, policy, baselines) for key, arms in cells.items() if policy in arms]
    return {
        "rule": f"P95 TTFT of {policy} <= {1 + MARGIN} times the better of {' and '.join(baselines)}, "
        f"among arms with at most {COMPLIANT_VIOLATIONS:.1%} of gaps over the TBT objective",
        "cells": len(verdicts),
        "holds": sum(verdict["holds"] for verdict in verdicts),
        "exceptions": [verdict for verdict in verdicts if not verdict["holds"]],
    }


def compliant(row: Row) -> bool:
    """Whether the row's arm keeps to the TBT objective and turns nothing away."""
    return bool(row["violations"] <= COMPLIANT_VIOLATIONS and not row["rejected"])


def _verdict(key: tuple[Any, ...], arms: Mapping[str, Row], policy: str, baselines: Sequence[str]) -> dict[str, Any]:
    """No compliant baseline: nothing to compare with, so that the claim holds."""
    ours = arms[policy]
    rivals = [arms[name] for name in baselines if name in arms and compliant(arms[name])]
    best = min(rivals, key=lambda row: row["ttft_p95_ms"], default=None)
    ratio = None if best is None else ours["ttft_p95_ms"] / best["ttft_p95_ms"]
    return {
        **dict(zip(_CELL, key, strict=True)),
        "compliant": compliant(ours),
        "violations": ours["violations"],
        "ttft_p95_ms": ours["ttft_p95_ms"],
        "best": None if best is None else best["policy"],
        "best_ttft_p95_ms": None if best is None else best["ttft_p95_ms"],
        "best_violations": None if best is None else best["violations"],
        "ratio": None if ratio is None else round(ratio, 3),
        "holds": ratio is None or (compliant(ours) and ratio <= 1 + MARGIN),
    }
