"""From a case's cells to what they say of the governor: pure. Rates are those that were run."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.governor.contenders import GOVERNOR, STOCK, of_name
from benchmarks.governor.engine_view import recovery_s
from benchmarks.serving.derive import Point, paired, points_of
from benchmarks.serving.record import Row

STOCK_LATE, GOVERNOR_LATE = 0.10, 0.01
"""Where stock has more than the first share late, the governor must have less than the second."""
TTFT_LIMIT = 1.10
"""Most that the governor's P95 TTFT may be over that of the best fixed chunk."""
LOSS_LIMIT = 0.02
"""Most of the best fixed chunk's goodput that the governor may lose at any rate."""
RECOVERED_WITHIN_S = 30.0


def derived(rows: Sequence[Row], records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Everything of one case, for comparison.json. `records` are the cells that the rows are made of."""
    points = points_of(rows)
    rates = [at_rate(rows, points, rate_rps) for rate_rps in sorted({point.rate_rps for point in points})]
    losses = [one["goodput_loss"] for one in rates if one["goodput_loss"] is not None]
    return {
        "where_stock_is_late": next((one for one in rates if (one["stock_late_share"] or 0.0) > STOCK_LATE), None),
        "by_rate": rates,
        "goodput": goodput(points),
        "largest_goodput_loss": max(losses, default=None),
        "loss_holds": max(losses) <= LOSS_LIMIT if losses else None,
        "recovery": recoveries(records),
    }


def at_rate(rows: Sequence[Row], points: Sequence[Point], rate_rps: float) -> dict[str, Any]:
    """The governor beside stock and the best fixed chunks at one rate.

    Best by TTFT is the one with least P95 TTFT among those with less than `GOVERNOR_LATE` late, best by goodput the one
    with most of it; vLLM's default counts as a fixed chunk. Medians; the TTFT's ratio is taken within repeats.
    """
    here = {point.contender: point for point in points if point.rate_rps == rate_rps}
    fixed = [point for name, point in here.items() if of_name(name).is_fixed]
    late, good = _middle(here.get(GOVERNOR), "late_share"), _middle(here.get(GOVERNOR), "good_rps")
    by_ttft = min(filter(_is_safe, fixed), key=lambda point: _middle(point, "ttft_p95_s") or float("inf"), default=None)
    by_goodput = max(fixed, key=lambda point: _middle(point, "good_rps") or 0.0, default=None)
    ratio = None if by_ttft is None else _ttft_ratio(rows, by_ttft.contender, rate_rps)
    best_good = _middle(by_goodput, "good_rps")
    return {
        "rate_rps": rate_rps,
        "stock_late_share": _middle(here.get(STOCK), "late_share"),
        "governor_late_share": late,
        "late_holds": None if late is None else late < GOVERNOR_LATE,
        "best_fixed_by_ttft": None if by_ttft is None else by_ttft.contender,
        "p95_ttft_over_best_fixed": ratio,
        "ttft_holds": None if ratio is None else ratio <= TTFT_LIMIT,
        "best_fixed_by_goodput": None if by_goodput is None else by_goodput.contender,
        "best_fixed_good_rps": best_good,
        "governor_good_rps": good,
        "goodput_loss": 1 - good / best_good if good is not None and best_good else None,
    }


def goodput(points: Sequence[Point]) -> dict[str, Any]:
    """The most goodput at any rate: the governor's, and that of the fixed chunk that is best in hindsight."""
    known = [point for point in points if _middle(point, "good_rps") is not None]
    ours = _most_good([point for point in known if point.contender == GOVERNOR])
    fixed = _most_good([point for point in known if of_name(point.contender).is_fixed])
    gain = ours["good_rps"] / fixed["good_rps"] - 1 if ours and fixed and fixed["good_rps"] else None
    return {"governor": ours, "best_fixed": fixed, "gain": gain}


def recoveries(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each contender with a scaled profile: by repeat its windows, and from when on few gaps are late."""
    found: dict[str, Any] = {}
    for record in records:
        if record["status"] == "ok" and of_name(record["contender"]).is_scaled:
            windows = record["engine"]["windows"]
            run = {"repeat": record["repeat"], "recovery_s": recovery_s(windows, GOVERNOR_LATE), "windows": windows}
            found.setdefault(record["contender"], {"runs": []})["runs"].append(run)
    for each in found.values():
        times = [run["recovery_s"] for run in each["runs"]]
        each["slowest_s"] = None if None in times else max(times)
        each["holds"] = each["slowest_s"] is not None and each["slowest_s"] <= RECOVERED_WITHIN_S
    return found


def _is_safe(point: Point) -> bool:
    late = _middle(point, "late_share")
    return late is not None and late < GOVERNOR_LATE and _middle(point, "ttft_p95_s") is not None


def _ttft_ratio(rows: Sequence[Row], fixed: str, rate_rps: float) -> float | None:
    ratios = paired(rows, GOVERNOR, fixed, "ttft_p95_s").get(rate_rps)
    return median(ratios) if ratios else None


def _most_good(points: Sequence[Point]) -> dict[str, Any] | None:
    best = max(points, key=lambda point: _middle(point, "good_rps") or 0.0, default=None)
    if best is None:
        return None
    return {"contender": best.contender, "rate_rps": best.rate_rps, "good_rps": _middle(best, "good_rps")}


def _middle(point: Point | None, name: str) -> float | None:
    return None if point is None else point.middle(name)
