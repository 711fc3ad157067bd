"""`kairos steps`: what the recorded steps of one or more engines took, and what their token gaps are put down to."""

import argparse
import sys
from pathlib import Path

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.errors import ConfigError


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos steps`."""
    parser = OneLineParser(prog=prog, description=__doc__)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="files of the engine setting step_record.file")
    slo = "TBT objective that violations are counted against (that of the recording)"
    parser.add_argument("--tbt-slo-ms", type=float, metavar="MS", help=slo)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Read the files and print what they say."""
    from vllm_kairos.results.json_text import to_json
    from vllm_kairos.steps.report import report
    from vllm_kairos.steps.table import lines

    slo_ms = arguments.tbt_slo_ms
    if slo_ms is not None and not 0 < slo_ms < float("inf"):
        raise ConfigError(f"--tbt-slo-ms must be a finite number > 0, got {slo_ms}")
    reports = report(arguments.files, None if slo_ms is None else slo_ms / 1e3)
    if arguments.json:
        sys.stdout.write(to_json(reports))
        return 0
    sys.stdout.write("\n\n".join("\n".join(lines(name, each)) for name, each in reports.items()) + "\n")
    return 0


COMMAND = Command(summary="say what recorded engine steps took and why tokens came late", make_parser=make_parser, run=run)
