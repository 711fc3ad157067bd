"""What is left of a comparison: comparison.json, cells.csv, pictures and one page."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.serving.derive import derived, points_of
from benchmarks.serving.leases import leases_of
from benchmarks.serving.pictures import PICTURES, draw_all
from benchmarks.serving.record import Row, columns, flat
from benchmarks.serving.setting import Setting
from benchmarks.serving.tables import all_tables
from vllm_kairos.results.json_text import plain, to_json
from vllm_kairos.results.out_dir import remove_stale, write_all
from vllm_kairos.simulate.report import render

_LATE_S = 0.010
_BUSY = 0.85


def one_line(row: Row) -> str:
    """A cell for a person."""
    name = f"r{row['repeat']} {row['rate_rps']:g}/s {row['contender']:<26}"
    if row["status"] != "ok":
        return f"{name} failed: {row['reason']}"
    return (
        f"{name} TTFT p50 {_ms(row['ttft_p50_s'])} p95 {_ms(row['ttft_p95_s'])}, TBT p95 {_ms(row['tbt_p95_s'])} ms, "
        f"attained {row['slo_attainment']:.1%}, over TBT {row['tbt_violation_share']:.2%}, failed {row['failed']}, "
        f"unanswered {row['unanswered']}, deflected {row['deflected_share']:.0%}, busy {row['busy_share']:.0%}"
    )


def write_report(out: Path, setting: Setting, records: Sequence[dict[str, Any]], command: str) -> None:
    """Write all files. Raises ConfigError when one cannot be written."""
    rows = in_order([flat(record) for record in records], setting)
    points = points_of(rows)
    found = derived(rows, ttft_s=setting.ttft_slo_ms / 1e3, tbt_s=setting.tbt_slo_ms / 1e3) | {"leases": leases_of(rows)}
    document = {
        "command": command,
        "environment": describe_machine(),
        "setting": plain(setting),
        "derived": found,
        "points": plain(points),
        "cells": rows,
    }
    has_figures = any(point.figures for point in points)
    slo = {"ttft_slo_ms": setting.ttft_slo_ms, "tbt_slo_ms": setting.tbt_slo_ms}
    pictures = draw_all(points, **slo) if has_figures else {}
    page = render(
        setting.title,
        lines=list(_lines(setting, rows)),
        warnings=list(care_lines(rows)),
        tables=all_tables(points, found),
        pictures={name: picture for name, picture in pictures.items() if name == "rates.png"},
        command=command,
    )
    remove_stale(out, PICTURES - pictures.keys())
    write_all(out, {"comparison.json": to_json(document), "cells.csv": as_csv(rows), "report.html": page, **pictures})


def in_order(rows: Sequence[Row], setting: Setting) -> list[Row]:
    """Contenders as the setting names them, then others; rates and repeats rising."""
    place = {name: at for at, name in enumerate(setting.contenders)}
    return sorted(
        rows, key=lambda row: (place.get(row["contender"], len(place)), row["contender"], row["rate_rps"], row["repeat"])
    )


def care_lines(rows: Sequence[Row]) -> Iterator[str]:
    """What a reader of these figures has to know."""
    for row in rows:
        if row["status"] != "ok":
            yield f"{_where(row)} gave no figures: {row['reason']}"
    good = [row for row in rows if row["status"] == "ok"]
    for row in good:
        if row["failed"]:
            yield f"{_where(row)}: {row['failed']} of {row['requests']} requests failed"
    cut = [row for row in good if row["unanswered"]]
    if cut:
        yield (
            f"{len(cut)} cells were cut a minute after their load's end with requests unanswered, most: {_where(_worst(cut))}; "
            "their TTFT is a lower bound, and what those requests had got of their answers is not in the throughput"
        )
    late = [row for row in good if max(row["send_lag_p99_s"] or 0.0, row["client_lag_p99_s"] or 0.0) > _LATE_S]
    if late:
        worst = max(late, key=lambda row: row["client_lag_p99_s"] or 0.0)
        yield (
            f"in {len(late)} of {len(good)} cells the client's P99 lag was over {_LATE_S * 1e3:g} ms, at most "
            f"{(worst['client_lag_p99_s'] or 0.0) * 1e3:.0f} ms ({_where(worst)}): their latencies are partly about the client"
        )
    busy = [row for row in good if row["busy_share"] > _BUSY]
    if busy:
        others_s = sum(row["others_cpu_s"] for row in busy) / len(busy)
        yield (
            f"in {len(busy)} of {len(good)} cells this machine's cores were over {_BUSY:.0%} busy, {others_s:.0f} CPU seconds "
            "a cell with other work: emulated steps may have ended late"
        )


def as_csv(rows: Sequence[Row]) -> str:
    """A line per cell; what a cell has not is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows([plain(row) for row in rows])
    return text.getvalue()


def _lines(setting: Setting, rows: Sequence[Row]) -> Iterator[str]:
    repeats = len({row["repeat"] for row in rows})
    yield (
        f"Objectives: TTFT {setting.ttft_slo_ms:g} ms, TBT {setting.tbt_slo_ms:g} ms. {len(rows)} cells in {repeats} repeats; "
        f"each sends {_sends(setting)}, in open loop. Contenders of a repeat get the same requests."
    )


def _worst(cut: Sequence[Row]) -> Row:
    return max(cut, key=lambda row: row["unanswered"])


def _sends(setting: Setting) -> str:
    return f"its rate for {setting.duration_s:g} s" if setting.requests is None else f"{setting.requests} requests"


def _where(row: Row) -> str:
    return f"{row['contender']} at {row['rate_rps']:g} requests/s, repeat {row['repeat']}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f}"
