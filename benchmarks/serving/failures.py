"""Failures in the midst of a replay: what clients see of them, through our router and through vllm-router.

Run: python -m benchmarks.serving.failures --vllm-router PATH --out DIR --write benchmarks/results/serving/failures.json

Four emulated servers (2P2D, the setting `paper`) are started once. Each cell starts a router, replays a steady load,
injects one failure at a fixed moment, and checks every word of every answer against what the emulated model says.
Routers take turns within a scenario, and scenarios within a repeat. A cell's file goes to DIR as it ends.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.serving.contenders import Contender, Programs, find
from benchmarks.serving.failing.cell import TIMEOUT_S, Bench, run_cell
from benchmarks.serving.failing.expected import Model
from benchmarks.serving.failing.recovery import SLOW_FACTOR
from benchmarks.serving.failing.report import as_markdown, as_text, summed
from benchmarks.serving.failing.scenarios import SCENARIOS, Scenario
from benchmarks.serving.failing.steady import OUTPUT_TOKENS, PROMPT_TOKENS
from benchmarks.serving.record import load_one, save
from benchmarks.serving.running import exit_status, run_until_stopped, say
from benchmarks.serving.setting import Setting
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.model import find_model
from vllm_kairos.errors import ClusterError, ConfigError
from vllm_kairos.results.json_text import to_json
from vllm_kairos.results.out_dir import make_out_dir, write_all

_CELL_EXTRA_S = 14.0  # a router's start, the last answers, and the servers' mending
Cell = tuple[int, Scenario, Contender]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", nargs="+", choices=list(SCENARIOS), default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--contenders", nargs="+", default=["kairos", "vllm-router-round-robin"], metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="times that every cell is run (3)")
    parser.add_argument("--rate", type=float, default=3.0, metavar="RPS", help="requests per second (3)")
    parser.add_argument("--vllm-router", type=Path, metavar="PATH", help="the program of vllm-router 0.1.17")
    parser.add_argument("--out", type=Path, default=Path("failures"), metavar="DIR", help="logs and cells (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="leave out the cells that DIR has")
    parser.add_argument("--write", type=Path, metavar="FILE", help="where the summary goes (DIR/failures.json)")
    args = parser.parse_args(argv)
    if args.repeats < 1 or not 0 < args.rate < float("inf"):
        parser.error("--repeats must be >= 1 and --rate a number > 0")
    return args


def order(repeats: int, scenarios: Sequence[Scenario], contenders: Sequence[Contender]) -> Iterator[Cell]:
    """Routers in turn, beginning with another one each time."""
    for repeat in range(repeats):
        for at, scenario in enumerate(scenarios):
            start = (repeat + at) % len(contenders)
            for contender in (*contenders[start:], *contenders[:start]):
                yield repeat, scenario, contender


def file_of(out: Path, cell: Cell) -> Path:
    """Where a cell's record goes."""
    repeat, scenario, contender = cell
    return out / "cells" / f"r{repeat}-{scenario.name}-{contender.name.replace(':', '-')}.json"


def left_to_run(args: argparse.Namespace, cells: Sequence[Cell]) -> list[Cell]:
    """Those that DIR does not have. Raises ConfigError when it has cells and --resume is not given."""
    left = [cell for cell in cells if not file_of(args.out, cell).is_file()]
    if any((args.out / "cells").glob("*.json")) and not args.resume:
        raise ConfigError(f"--out must hold no cells without --resume, got {str(args.out)!r}")
    records_in(args)
    return left


def records_in(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The cells that DIR has. Raises ConfigError naming a file that is none, or one of another load."""
    found = []
    for path in sorted((args.out / "cells").glob("*.json")):
        record = load_one(path)
        missing = [name for name in ("scenario", "contender", "verdicts", "machine_load_before") if name not in record]
        if missing:
            raise ConfigError(f"{path}: must be a cell's record; without the file the cell is run again, got no {missing[0]}")
        if record.get("rate_rps", args.rate) != args.rate:
            raise ConfigError(f"{path}: must be of --rate {args.rate:g}, got {record['rate_rps']:g}")
        found.append(record)
    return found


def expected_minutes(cells: Sequence[Cell]) -> float:
    """What these cells will take."""
    return sum(scenario.expected_s + _CELL_EXTRA_S for _, scenario, _ in cells) / 60


async def run_all(bench: Bench, cells: Sequence[Cell]) -> None:
    """Run the cells on one cluster; one that cannot be run is left out. Raises KairosError when servers do not start."""
    say(f"starting {bench.spec.servers} servers; {len(cells)} cells, about {expected_minutes(cells):.0f} minutes")
    async with LocalCluster(bench.spec) as cluster:
        for at, (repeat, scenario, contender) in enumerate(cells):
            load = os.getloadavg()[0]
            try:
                record = await run_cell(bench, cluster, contender, scenario, repeat) | {
                    "machine_load_before": load,
                    "rate_rps": bench.rate_rps,
                }
            except ClusterError as error:
                say(f"{scenario.name} {contender.name} r{repeat} is left out: {error}")
                continue
            save(record, file_of(bench.out, (repeat, scenario, contender)))
            left = expected_minutes(cells[at + 1 :])
            counts = " ".join(f"{verdict}={count}" for verdict, count in record["verdicts"].items() if count)
            say(f"{scenario.name} {contender.name} r{repeat}: {counts}; about {left:.0f} minutes left")


def document(records: Sequence[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """The summary: settings, machine, a row per scenario and router."""
    loads = [record["machine_load_before"] for record in records]
    return {
        "schema": 1,
        "command": shlex.join(["python", "-m", "benchmarks.serving.failures", *_shown(args)]),
        "machine": describe_machine() | {"load_average_before_cells": [min(loads), max(loads)]},
        "load": {
            "rate_rps": args.rate,
            "prompt_tokens": list(PROMPT_TOKENS),
            "output_tokens": list(OUTPUT_TOKENS),
            "timeout_s": TIMEOUT_S,
            "slow_factor": SLOW_FACTOR,
        },
        "scenarios": {name: {"title": each.title, "fault_s": each.fault_s} for name, each in SCENARIOS.items()},
        "rows": summed(records),
    }


def _shown(args: argparse.Namespace) -> list[str]:
    """The command's words with nothing of this machine's folders in them."""
    words = ["--scenarios", *args.scenarios] if args.scenarios != list(SCENARIOS) else []
    words += ["--contenders", *args.contenders, "--repeats", str(args.repeats), "--rate", f"{args.rate:g}"]
    return [*words, *(["--vllm-router", "PATH"] if args.vllm_router else []), "--out", "DIR"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything and write the summary; status 130 when stopped, 2 for bad input, 1 for servers that fail."""
    args = parse(argv)
    return exit_status("failures", lambda: _main(args))


def _main(args: argparse.Namespace) -> int:
    programs = Programs(vllm_router=args.vllm_router)
    contenders = find(args.contenders, programs)
    make_out_dir(args.out / "cells")
    spec = Setting.read("paper").cluster_spec(args.out / "logs")
    bench = Bench(spec=spec, programs=programs, model=Model(Path(find_model(spec.model))), rate_rps=args.rate, out=args.out)
    cells = list(order(args.repeats, [SCENARIOS[name] for name in args.scenarios], contenders))
    left, finished = left_to_run(args, cells), True
    make_out_dir(args.write.parent if args.write else args.out)
    if left:
        finished = run_until_stopped(run_all(bench, left))
    _write(args, records_in(args))
    return 0 if finished else 130


def _write(args: argparse.Namespace, records: Sequence[dict[str, Any]]) -> None:
    if not records:
        return
    summary = document(records, args)
    target = args.write or args.out / "failures.json"
    write_all(target.parent, {target.name: to_json(summary)})
    write_all(args.out, {"failures.md": as_markdown(summary["rows"]) + "\n"})
    sys.stdout.write(as_text(summary["rows"]) + "\n")


if __name__ == "__main__":
    sys.exit(main())
