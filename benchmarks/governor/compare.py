"""Prefill sized by deadlines against every fixed chunk, on the same servers and the same requests.

Run: python -m benchmarks.governor.compare --setting cpu --out DIR

Contenders are configurations of the servers: stock, fixed-TOKENS, governor, and governor-xFACTOR, whose profile is wrong
by that factor. Each is started anew in every repeat, in another order, and replays all loads in open loop. DIR gets a
JSON file per cell as it ends, so that --resume goes on after an interruption; and comparison.json, cells.csv, rates.png.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.governor.cell import Served, row_of, run_cell, warm
from benchmarks.governor.plan import Place, Run, expected_s, runs
from benchmarks.governor.report import one_line, write_report
from benchmarks.governor.servers import server_spec, step_files
from benchmarks.governor.setting import PRESETS, Comparison
from benchmarks.serving.record import check_load, failed_cell, load_one, save
from benchmarks.serving.running import exit_status, run_until_stopped, say
from benchmarks.serving.setting import preset_names
from benchmarks.serving.sweep_flags import add_sweep_flags, setting_changes, shown_flags
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.errors import ConfigError, KairosError
from vllm_kairos.results.out_dir import make_out_dir


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    presets = ", ".join(preset_names(PRESETS))
    parser.add_argument("--setting", default="cpu", metavar="NAME|FILE", help=f"one of {presets}, or a YAML file (cpu)")
    parser.add_argument("--cases", nargs="+", metavar="NAME", help="cases of the setting (all)")
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help="in every case (the setting's)")
    parser.add_argument("--profile", metavar="NAME|FILE", help="what the governor predicts with (the setting's)")
    add_sweep_flags(parser, repeats=1)
    return parser.parse_args(argv)


def comparison_of(args: argparse.Namespace) -> Comparison:
    """The setting with the flags over it. Raises ConfigError."""
    return Comparison.read(args.setting).with_changes(setting_changes(args), names=args.cases, profile=args.profile)


def left_to_run(args: argparse.Namespace, comparison: Comparison) -> list[Run]:
    """What is still to be run, in order. Raises ConfigError when results are there and --resume is not."""
    every = list(runs(comparison.cases, args.repeats))
    done = [place for run in every for place in run.places if place.path(args.out).is_file()]
    if done and not args.resume:
        raise ConfigError(f"--out must hold no cells of this setting without --resume, got {len(done)} in {str(args.out)!r}")
    records = {place.path(args.out): load_one(place.path(args.out)) for place in done}
    for place in done:
        check_load(place.case.load, None, records[place.path(args.out)])
    kept = {path for path, record in records.items() if record["status"] == "ok" or not args.retry_failed}
    left = (run.without(lambda place: place.path(args.out) in kept) for run in every)
    return [run for run in left if run.places]


async def run_all(left: Sequence[Run], out: Path) -> None:
    """Run them all; servers that do not start, or fail, cost their cells alone."""
    for at, run in enumerate(left):
        minutes = expected_s(left[at:]) / 60
        say(f"{run.contender.name}: {len(run.places)} cells; {len(left) - at} starts left, about {minutes:.0f} minutes")
        waiting = list(run.places)
        try:
            await _run_one(run, waiting, out)
        except KairosError as error:
            for place in waiting:
                _keep(place, failed_cell(place.key, f"{type(error).__name__}: {error}"), out)


async def _run_one(run: Run, waiting: list[Place], out: Path) -> None:
    """Start the contender's servers and run its cells; takes each from `waiting` as it is recorded. Raises KairosError."""
    spec = server_spec(run.places[0].case, run.contender, out / "logs" / run.name)
    for path in step_files(spec):
        path.unlink(missing_ok=True)  # of an attempt before this one
    async with LocalCluster(spec) as cluster:
        served = Served(cluster=cluster, spec=spec, contender=run.contender, step_files=tuple(step_files(spec)))
        await warm(served, waiting[0])
        while waiting:
            _keep(waiting[0], await run_cell(served, waiting[0]), out)
            del waiting[0]


def _keep(place: Place, record: dict[str, Any], out: Path) -> None:
    place.path(out).parent.mkdir(parents=True, exist_ok=True)
    save(record, place.path(out))
    say(one_line(row_of(record, place.case)))


def found_records(comparison: Comparison, args: argparse.Namespace) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The cells that there are, with their places."""
    for run in runs(comparison.cases, args.repeats):
        for place in run.places:
            if place.path(args.out).is_file():
                yield place, load_one(place.path(args.out))


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left and write the report; status 130 when stopped, 2 for bad input."""
    args = parse(argv)
    command = shlex.join(["python", "-m", "benchmarks.governor.compare", *_shown(args)])
    return exit_status("compare", lambda: _main(args, command))


def _main(args: argparse.Namespace, command: str) -> int:
    comparison = comparison_of(args)
    left = [] if args.report_only else left_to_run(args, comparison)
    if not args.report_only:
        cells = sum(len(run.places) for run in left)
        say(f"{comparison.name}: {cells} cells, {len(left)} starts of servers, about {expected_s(left) / 60:.0f} minutes")
    if args.plan_only:
        return 0
    make_out_dir(args.out / "cells")
    finished = run_until_stopped(run_all(left, args.out)) if left else True
    write_report(args.out, comparison, list(found_records(comparison, args)), command)
    say(f"wrote {args.out}")
    return 0 if finished else 130


def _shown(args: argparse.Namespace) -> list[str]:
    """The command's words with nothing of this machine's folders in them."""
    words = ["--cases", *args.cases] if args.cases else []
    return shown_flags(args, [*words, *(["--profile", Path(args.profile).name] if args.profile else [])])


if __name__ == "__main__":
    sys.exit(main())
