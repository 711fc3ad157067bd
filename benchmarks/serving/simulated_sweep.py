"""A comparison's sweep in the simulator, with policies that only it has: what the oracle makes of the same requests.

Run: python -m benchmarks.serving.simulated_sweep --setting paper --duration-s 100 --rates 7 8 9 10 --out FILE

The oracle knows every engine's true state and deflects whatever is sooner and safe, any number at a time. No router does
better by deflecting, so its figures say how much of a target is there to be had.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.serving import derive
from benchmarks.serving.contenders import of_name
from benchmarks.serving.record import Row
from benchmarks.serving.setting import Setting
from benchmarks.serving.simulated import shown, simulate
from benchmarks.serving.sweep_flags import add_traces_flag, setting_changes, shown_flags
from vllm_kairos.errors import KairosError
from vllm_kairos.results.json_text import to_json

CONTENDERS = ("never", "kairos", "kairos-4-per-node", "kairos:oracle")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per cell and write JSON; status 2 for bad input."""
    args = parse(argv)
    try:
        setting = replace(Setting.read(args.setting), **setting_changes(args))
        rows = []
        for row in rows_of(setting, args.traces, args.repeats):
            sys.stdout.write(line(row) + "\n")
            sys.stdout.flush()
            rows.append(row)
        text = to_json(document(setting, rows, shown_flags(args, out="FILE")))
    except KairosError as error:
        sys.stderr.write(f"simulated_sweep: {error}\n")
        return 2
    if args.out is not None:
        args.out.write_text(text, encoding="utf-8")
    return 0


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", default="paper", metavar="NAME|FILE", help="the comparison's (paper)")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS), metavar="NAME", help=f"({' '.join(CONTENDERS)})")
    parser.add_argument("--rates", nargs="+", type=float, metavar="RPS", help="requests per second (the setting's)")
    parser.add_argument("--duration-s", type=float, metavar="S", help="a cell has rate x S requests (the setting's)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="draws of the load, the comparison's (5)")
    add_traces_flag(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    return parser.parse_args(argv)


def rows_of(setting: Setting, traces: Path | None, repeats: int) -> Iterator[Row]:
    """Every cell's figures. Raises ConfigError or WorkloadError."""
    for repeat in range(repeats):
        for rate_rps in setting.rates_rps:
            for name in setting.contenders:
                figures = shown(simulate(setting, traces, of_name(name), rate_rps, repeat))
                yield {"contender": name, "rate_rps": rate_rps, "repeat": repeat, "status": "ok", **figures}


def document(setting: Setting, rows: Sequence[Row], flags: Sequence[str]) -> dict[str, Any]:
    """What is published: the command, what is derived as from measured cells, and every cell."""
    return {
        "command": " ".join(("python -m benchmarks.serving.simulated_sweep", *flags)),
        "setting": setting.name,
        "environment": describe_machine(),
        "derived": derive.derived(rows, ttft_s=setting.ttft_slo_ms / 1e3, tbt_s=setting.tbt_slo_ms / 1e3),
        "cells": list(rows),
    }


def line(row: Row) -> str:
    """One cell, for a terminal."""
    p95_s = row["ttft_p95_s"]
    late = "-" if p95_s is None else f"{p95_s:.2f} s"
    return f"r{row['repeat']} {row['rate_rps']:g}/s {row['contender']:20} P95 TTFT {late}, attained {row['slo_attainment']:.1%}"


if __name__ == "__main__":
    sys.exit(main())
