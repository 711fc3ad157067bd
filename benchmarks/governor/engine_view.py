"""What the engines themselves say of a cell: gaps between tokens by their step files, TPOT by vLLM's histogram."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vllm_kairos.steps.report import StepReport, report

WINDOW_S = 10.0
_TPOT_BUCKET = re.compile(r'^vllm:request_time_per_output_token_seconds_bucket\{.*?le="([^"]+)".*?\} (\S+)', re.MULTILINE)
_CLOSE = 1e-9
Window = dict[str, float]
"""`from_s` since the load's start, `gaps`, and `violations` among them."""


def engine_figures(files: Sequence[Path], slo_s: float, within_s: tuple[float, float]) -> dict[str, Any]:
    """Steps that ended within a time, and the gaps that they ended. Raises ConfigError for a file that cannot be read."""
    found = _all_of(files, slo_s, within_s)
    return {
        "steps": found.steps,
        "prefill_tokens": found.prefill_tokens,
        **asdict(found.total),
        "violations_by_cause": {cause: each.violations for cause, each in found.causes.items()},
        "regimes": {regime: asdict(each) for regime, each in found.regimes.items()},
    }


def windows(files: Sequence[Path], slo_s: float, within_s: tuple[float, float]) -> list[Window]:
    """Gaps and violations of each `WINDOW_S` from the beginning on; the last window may be shorter."""
    start_s, end_s = within_s
    found = []
    for at in range(max(1, -int(-(end_s - start_s) // WINDOW_S))):
        since_s = start_s + at * WINDOW_S
        total = _all_of(files, slo_s, (since_s, min(end_s, since_s + WINDOW_S))).total
        found.append({"from_s": at * WINDOW_S, "gaps": total.gaps, "violations": total.violations})
    return found


def recovery_s(found: Sequence[Window], most_share: float) -> float | None:
    """From which window on no more than `most_share` of all gaps that follow are violations; None: from none on."""
    for at, window in enumerate(found):
        gaps, violations = (sum(each[name] for each in found[at:]) for name in ("gaps", "violations"))
        if gaps and violations <= most_share * gaps:
            return window["from_s"]
    return None


def tpot_buckets(text: str) -> dict[float, float]:
    """Requests by upper bound of their TPOT in seconds, each bucket holding those below it, too, of one `/metrics`."""
    found: dict[float, float] = {}
    for bound, count in _TPOT_BUCKET.findall(text):
        found[float(bound)] = found.get(float(bound), 0.0) + float(count)
    return found


def tpot_attainment(before: Mapping[float, float], after: Mapping[float, float], slo_s: float) -> float | None:
    """The share of the requests that ended between two looks with a TPOT up to `slo_s`; None where no bucket ends there."""
    bound = next((each for each in after if abs(each - slo_s) < _CLOSE), None)
    ended = after.get(float("inf"), 0.0) - before.get(float("inf"), 0.0)
    if bound is None or not ended:
        return None
    return (after[bound] - before.get(bound, 0.0)) / ended


def _all_of(files: Iterable[Path], slo_s: float, within_s: tuple[float, float]) -> StepReport:
    reports = report(files, slo_s, within_s=within_s)
    return reports["all"] if "all" in reports else next(iter(reports.values()))
