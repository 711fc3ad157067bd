"""`kairos simulate`: what each policy would do to a load on a cluster."""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.errors import ConfigError

if TYPE_CHECKING:
    from vllm_kairos.simulate.config import SimulateConfig
    from vllm_kairos.simulate.sweep import CellResult
    from vllm_kairos.workload.request import Workload

_EFFECTLESS = {"--out": 1, "--workers": 1, "--requests-csv": 0, "--no-requests-csv": 0, "--plots": 0, "--no-plots": 0}
"""Flags that do not change what is simulated, by how many values they take; results.json leaves them out."""


class RememberingParser(OneLineParser):
    """Keeps the words it was given, for results.json."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed = super().parse_args(args, namespace)
        parsed.prog, parsed.argv = self.prog, list(sys.argv[1:] if args is None else args)
        return parsed


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos simulate`."""
    from vllm_kairos.simulate.config import OPTIONS
    from vllm_kairos.simulate.options import add_flags

    parser = RememberingParser(prog=prog, description=__doc__)
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with the settings below; flags override it")
    parser.add_argument(
        "--out", type=Path, default=Path("kairos-simulation"), metavar="DIR", help="where results go (kairos-simulation)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (one per CPU)")
    named = "run a named experiment; settings given here override its own"
    parser.add_argument("--experiment", metavar="NAME", help=named)
    rows = "also write requests.csv, a row per request and simulation (no)"
    parser.add_argument("--requests-csv", action=argparse.BooleanOptionalAction, default=False, help=rows)
    parser.add_argument("--plots", action=argparse.BooleanOptionalAction, default=True, help="draw PNGs (yes)")
    add_flags(parser, OPTIONS)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Simulate and write results.json, summary.csv, plots and report.html."""
    from vllm_kairos.simulate.config import OPTIONS, load_config, load_values
    from vllm_kairos.simulate.options import read_flags
    from vllm_kairos.simulate.plot import need_matplotlib
    from vllm_kairos.simulate.sweep import check

    flags, workers = read_flags(arguments, OPTIONS), worker_count(arguments.workers)
    if arguments.plots:
        need_matplotlib()
    if arguments.experiment is not None:
        return _experiment(arguments, load_values(arguments.config, flags), workers)
    config = load_config(arguments.config, flags)
    workload = check(config)
    out = _out(arguments)
    started_s = time.monotonic()
    results = sweep(config, len(workload.requests), workers=workers, with_requests=arguments.requests_csv)
    _write(out, arguments, config, workload, results, time.monotonic() - started_s)
    return 0


def sweep(config: "SimulateConfig", requests: int, *, workers: int, with_requests: bool = False) -> "list[CellResult]":
    """Run the whole grid behind a progress bar."""
    from vllm_kairos.simulate.progress import request_bar
    from vllm_kairos.simulate.sweep import grid, run_cells

    cells = grid(config, with_requests=with_requests)
    with request_bar(f"{len(cells)} simulations", requests * len(cells)) as tell:
        return run_cells(cells, workers=workers, tell=tell)


def worker_count(asked: int | None) -> int:
    """As many as asked, or one per CPU. Raises ConfigError."""
    from vllm_kairos.simulate.workers import default_workers

    if asked is not None and asked < 1:
        raise ConfigError(f"--workers must be >= 1, got {asked}")
    return asked or default_workers()


def _experiment(arguments: argparse.Namespace, overrides: Any, workers: int) -> int:
    from vllm_kairos.simulate.experiment_command import run_experiment

    for line in run_experiment(arguments, overrides, command_line(arguments), workers=workers):
        say(line)
    return 0


def _out(arguments: argparse.Namespace) -> Path:
    from vllm_kairos.results.out_dir import make_out_dir

    return make_out_dir(arguments.out)


def _write(
    out: Path,
    arguments: argparse.Namespace,
    config: "SimulateConfig",
    workload: "Workload",
    results: "list[CellResult]",
    wall_s: float,
) -> None:
    from vllm_kairos.results.json_text import to_json
    from vllm_kairos.results.out_dir import write_all
    from vllm_kairos.simulate.document import requests_csv
    from vllm_kairos.simulate.sweep_report import sweep_files

    files = sweep_files(command_line(arguments), config, workload, results, plots=arguments.plots)
    files["timing.json"] = to_json({"wall_s": wall_s, "simulations": len(results)})
    if arguments.requests_csv:
        files["requests.csv"] = requests_csv(results)
    print_results(results, workload)  # first: a full disk does not take the table away
    write_all(out, files)
    say(f"wrote {', '.join(files)} to {out}")


def print_results(results: "list[CellResult]", workload: "Workload") -> None:
    """The table on stdout, with what a reader should know about the load above it."""
    from vllm_kairos.simulate.report import care_lines
    from vllm_kairos.simulate.table import SHORT_HEADINGS, as_text, groups_of, table_rows

    groups = groups_of(results)
    print_load(workload)
    say(as_text(SHORT_HEADINGS, table_rows(groups)))
    for line in care_lines(groups):
        say(line)


def print_load(workload: "Workload") -> None:
    """What the load is, and what was odd about it."""
    from vllm_kairos.simulate.load_lines import load_lines
    from vllm_kairos.workload.describe import describe

    for line in (*load_lines(describe(workload)), *(f"warning: {warning}" for warning in workload.warnings)):
        say(line)


def say(text: str) -> None:
    """One more line on stdout."""
    sys.stdout.write(f"{text}\n")


def command_line(arguments: argparse.Namespace) -> str:
    """What was typed, less what has no effect on the figures."""
    return shlex.join([*arguments.prog.split(), *_telling(arguments.argv)])


def _telling(argv: list[str]) -> list[str]:
    kept, skip = [], 0
    for word in argv:
        if skip:
            skip -= 1
        elif word.split("=")[0] in _EFFECTLESS:
            skip = 0 if "=" in word else _EFFECTLESS[word]
        else:
            kept.append(word)
    return kept


COMMAND = Command(summary="predict what each policy does to a load on a cluster", make_parser=make_parser, run=run)
