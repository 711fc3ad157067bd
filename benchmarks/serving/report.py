"""What is left of a comparison: comparison.json, cells.csv, pictures and one page."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.serving.record import Row, columns, flat
from benchmarks.serving.setting import Setting
from vllm_kairos.results.json_text import plain, to_json
from vllm_kairos.results.out_dir import write_all


def one_line(row: Row) -> str:
    """A cell for a person."""
    name = f"r{row['repeat']} {row['rate_rps']:g}/s {row['contender']:<26}"
    if row["status"] != "ok":
        return f"{name} failed: {row['reason']}"
    return (
        f"{name} TTFT p50 {_ms(row['ttft_p50_s'])} p95 {_ms(row['ttft_p95_s'])}, TBT p95 {_ms(row['tbt_p95_s'])} ms, "
        f"attained {row['slo_attainment']:.1%}, over TBT {row['tbt_violation_share']:.2%}, failed {row['failed']}, "
        f"deflected {row['deflected_share']:.0%}, busy {row['busy_share']:.0%}"
    )


def write_report(out: Path, setting: Setting, records: Sequence[dict[str, Any]], command: str) -> None:
    """Write all files. Raises ConfigError when one cannot be written."""
    rows = [flat(record) for record in records]
    document = {"command": command, "environment": describe_machine(), "setting": plain(setting), "cells": rows}
    write_all(out, {"comparison.json": to_json(document), "cells.csv": as_csv(rows)})


def as_csv(rows: Sequence[Row]) -> str:
    """A line per cell; what a cell has not is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows([plain(row) for row in rows])
    return text.getvalue()


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f}"
