"""What is left of a comparison: comparison.json, cells.csv, one picture, and lines for a person."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.governor.cell import row_of
from benchmarks.governor.contenders import of_name
from benchmarks.governor.derive import derived
from benchmarks.governor.picture import draw
from benchmarks.governor.plan import Place
from benchmarks.governor.setting import Case, Comparison
from benchmarks.serving.derive import Point, points_of
from benchmarks.serving.record import Row
from benchmarks.serving.report import as_csv, care_lines, in_order
from vllm_kairos.results.json_text import plain, to_json
from vllm_kairos.results.out_dir import remove_stale, write_all

Found = Sequence[tuple[Place, dict[str, Any]]]


def one_line(row: Row) -> str:
    """A cell for a person."""
    name = f"{row['case']} r{row['repeat']} {row['rate_rps']:g}/s {row['contender']:<14}"
    if row["status"] != "ok":
        return f"{name} failed: {row['reason']}"
    return (
        f"{name} TTFT p50 {_ms(row['ttft_p50_s'])} p95 {_ms(row['ttft_p95_s'])}, engine TBT p95 {_ms(row['engine_tbt_p95_s'])} "
        f"p99 {_ms(row['engine_tbt_p99_s'])} ms, late {row['late_share']:.2%}, goodput {row['good_rps']:.2f}/s, "
        f"{row['output_tokens_per_s']:.0f} tokens/s, failed {row['failed']}, unanswered {row['unanswered']}, "
        f"busy {row['busy_share']:.0%}"
    )


def write_report(out: Path, comparison: Comparison, found: Found, command: str) -> None:
    """Write all files, and say what they say. Raises ConfigError when one cannot be written."""
    rows = {case.name: _rows(case, found) for case in comparison.cases}
    points = {name: points_of(each) for name, each in rows.items()}
    results = {name: derived(each, _records(name, found)) for name, each in rows.items()}
    every = [row for each in rows.values() for row in each]
    document = {
        "command": command,
        "environment": describe_machine(),
        "setting": plain(comparison),
        "care": list(care_lines(every)),
        "derived": results,
        "points": plain(points),
        "cells": every,
    }
    drawn = {
        case.name: (points[case.name], case.load.ttft_slo_ms) for case in comparison.cases if _has_lines(points[case.name])
    }
    pictures = {"rates.png": draw(drawn)} if drawn else {}
    remove_stale(out, {"rates.png"} - pictures.keys())
    write_all(out, {"comparison.json": to_json(document), "cells.csv": as_csv(every), **pictures})
    sys.stdout.write("\n".join(line for name, each in results.items() for line in lines(name, each)) + "\n")


def lines(case: str, found: Mapping[str, Any]) -> Iterator[str]:
    """What a case says, for a person."""
    for one in found["by_rate"]:
        yield (
            f"{case} {one['rate_rps']:g}/s: late stock {_percent(one['stock_late_share'])}, governor "
            f"{_percent(one['governor_late_share'])}; P95 TTFT {_number(one['p95_ttft_over_best_fixed'])} of "
            f"{one['best_fixed_by_ttft']}'s; goodput {_number(one['governor_good_rps'])}, best fixed "
            f"{_number(one['best_fixed_good_rps'])} ({one['best_fixed_by_goodput']})"
        )
    most = found["goodput"]
    if most["governor"] and most["best_fixed"]:
        yield f"{case}: most goodput {_percent(most['gain'])} over {most['best_fixed']['contender']}'s"
    yield f"{case}: largest loss of goodput at any rate {_percent(found['largest_goodput_loss'])}"
    for contender, each in found["recovery"].items():
        times = ", ".join("never" if run["recovery_s"] is None else f"{run['recovery_s']:g} s" for run in each["runs"])
        yield f"{case}: {contender} recovers after {times}"


def _rows(case: Case, found: Found) -> list[Row]:
    rows = [row_of(record, case) for place, record in found if place.case.name == case.name]
    return in_order(rows, case.load)


def _has_lines(points: Sequence[Point]) -> bool:
    return any(point.figures for point in points if not of_name(point.contender).is_scaled)


def _records(case: str, found: Found) -> list[dict[str, Any]]:
    return [record for place, record in found if place.case.name == case]


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
