"""Every router a user could pick, in alternation on the same servers and the same requests.

Run: python -m benchmarks.serving.compare --setting paper --vllm-router PATH --toy-proxy PATH --out DIR

Servers are started once; each cell (a contender at a rate, in a repeat) starts its front, warms it up, replays the
load in open loop, ends the front and waits until all servers are idle. DIR gets a JSON file per cell as it ends, so
that a sweep that was cut off goes on with --resume; and comparison.json, cells.csv, PNGs and report.html.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.cell import Bench, run_cell
from benchmarks.serving.contenders import CONTENDERS, Contender, Programs, find
from benchmarks.serving.record import check_load, failed_cell, flat, load_all, load_one, save
from benchmarks.serving.report import one_line, write_report
from benchmarks.serving.running import exit_status, run_until_stopped, say
from benchmarks.serving.setting import Setting, preset_names, workload_of
from benchmarks.serving.sweep import CellKey, cells, expected_s
from benchmarks.serving.sweep_flags import add_sweep_flags, add_traces_flag, setting_changes, shown_flags
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.errors import ClusterError, ConfigError
from vllm_kairos.results.out_dir import make_out_dir

_MOST_RESTARTS = 3


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    presets = ", ".join(preset_names())
    parser.add_argument("--setting", default="paper", metavar="NAME|FILE", help=f"one of {presets}, or a YAML file (paper)")
    known = ", ".join(CONTENDERS)
    parser.add_argument("--contenders", nargs="+", metavar="NAME", help=f"of {known}, or kairos:SPEC (the setting's)")
    parser.add_argument("--vllm-router", type=Path, metavar="PATH", help="the program of vllm-router 0.1.17")
    parser.add_argument("--toy-proxy", type=Path, metavar="PATH", help="toy_proxy_server.py of vLLM's source distribution")
    add_traces_flag(parser)
    add_sweep_flags(parser, repeats=5)
    return parser.parse_args(argv)


def setting_of(args: argparse.Namespace) -> Setting:
    """The setting with the flags over it. Raises ConfigError."""
    return replace(Setting.read(args.setting), **setting_changes(args))


def left_to_run(args: argparse.Namespace, setting: Setting) -> list[CellKey]:
    """The cells that are still to be run, in order. Raises ConfigError when results are there and --resume is not."""
    folder = args.out / "cells"
    every = list(cells(setting.contenders, setting.rates_rps, args.repeats))
    if len({key.file_name for key in every}) < len(every):
        raise ConfigError(f"contenders must differ in letters and digits, as files do, got {list(setting.contenders)}")
    done = {key.file_name for key in every if (folder / key.file_name).is_file()}
    if done and not args.resume:
        raise ConfigError(f"--out must hold no cells of this sweep without --resume, got {len(done)} in {str(args.out)!r}")
    for record in load_all(folder):  # also of contenders and rates beside these: all end in one report
        check_load(setting, args.traces, record)
    if done and args.retry_failed:
        done -= {key.file_name for key in every if key.file_name in done and _has_failed(folder / key.file_name)}
    return [key for key in every if key.file_name not in done]


def _has_failed(path: Path) -> bool:
    return bool(load_one(path)["status"] == "failed")


async def run_all(args: argparse.Namespace, setting: Setting, keys: Sequence[CellKey], programs: Programs) -> None:
    """Run the cells; servers that fail are started anew, a few times. Raises ClusterError when that does not help."""
    contenders = {each.name: each for each in find(setting.contenders, programs)}
    bench = Bench(
        setting=setting,
        spec=setting.cluster_spec(args.out / "logs"),
        programs=programs,
        traces=args.traces,
        out=args.out,
    )
    left, restarts = list(keys), 0
    while left:
        try:
            await _run_some(bench, contenders, left)
        except ClusterError as error:
            restarts += 1
            if restarts > _MOST_RESTARTS:
                raise
            say(f"servers are started anew after: {error}")


async def _run_some(bench: Bench, contenders: dict[str, Contender], left: list[CellKey]) -> None:
    """Run cells on one cluster until none is left; takes each from `left` as it is recorded."""
    say(f"starting {bench.spec.servers} servers")
    done_loads_s: list[float] = []
    took_s: list[float] = []
    async with LocalCluster(bench.spec) as cluster:
        while left:
            key = left[0]
            try:
                record = await run_cell(bench, cluster, contenders[key.contender], key)
            except ClusterError as error:
                _keep(bench, failed_cell(key, f"servers: {error}"), left)
                raise
            _keep(bench, record, left)
            took_s.append(record["took_s"])
            done_loads_s.append(bench.setting.lasts_s(key.rate_rps))
            left_s = expected_s(_loads_s(bench.setting, left), done_loads_s=done_loads_s, took_s=took_s)
            say(f"{one_line(flat(record))}; {len(left)} cells left, about {left_s / 60:.0f} minutes")


def _loads_s(setting: Setting, keys: Sequence[CellKey]) -> list[float]:
    return [setting.lasts_s(key.rate_rps) for key in keys]


def _keep(bench: Bench, record: dict[str, Any], left: list[CellKey]) -> None:
    save(record, bench.out / "cells" / left.pop(0).file_name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is left and write the report; status 130 when stopped, 2 for bad input."""
    args = parse(argv)
    command = shlex.join(["python", "-m", "benchmarks.serving.compare", *_shown(args)])
    return exit_status("compare", lambda: _main(args, command))


def _main(args: argparse.Namespace, command: str) -> int:
    setting, programs = setting_of(args), Programs(vllm_router=args.vllm_router, toy_proxy=args.toy_proxy)
    if not args.report_only:
        find(setting.contenders, programs)
    keys = [] if args.report_only else left_to_run(args, setting)
    if not args.report_only:
        for rate_rps in setting.rates_rps:
            workload_of(setting, args.traces, rate_rps, args.repeats - 1)
        minutes = expected_s(_loads_s(setting, keys)) / 60
        say(f"{setting.name}: {len(keys)} cells, about {minutes:.0f} minutes and more past the knee")
    if args.plan_only:
        return 0
    make_out_dir(args.out / "cells")
    finished = True
    if keys:
        finished = run_until_stopped(run_all(args, setting, keys, programs))
    records = load_all(args.out / "cells")
    if setting.load.trace is None or args.traces is not None:  # a report alone needs no traces
        for record in records:
            check_load(setting, args.traces, record)
    write_report(args.out, setting, records, command)
    say(f"wrote {args.out}")
    return 0 if finished else 130


def _shown(args: argparse.Namespace) -> list[str]:
    """The command's words with nothing of this machine's folders in them."""
    words = ["--vllm-router", "PATH"] if args.vllm_router else []
    words += ["--toy-proxy", "PATH"] if args.toy_proxy else []
    return shown_flags(args, [*words, *(["--traces", "DIR"] if args.traces else [])])


if __name__ == "__main__":
    sys.exit(main())
