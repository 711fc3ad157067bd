"""`kairos profile`: measure step latency on the real engine and write a profile."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.profiler.options import DEFAULT_CHUNK_CANDIDATES, FULL_BUDGET_S, QUICK_BUDGET_S, ProfileOptions, check_output

_EPILOG = """\
Give the engine the flags its servers are started with; flags without an option here go after `--`:
  kairos profile --model DIR --out profile.json --quick --dtype bfloat16 --max-model-len 4096 \\
      --block-size 32 --max-num-seqs 16 --cpus 0 -- --enforce-eager
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos profile`."""
    parser = OneLineParser(prog=prog, description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="model folder or hub name")
    parser.add_argument("--out", required=True, type=Path, help="profile to write (JSON)")
    parser.add_argument("--quick", action="store_true", help="coarser sweep, under 3 minutes on 2 CPU cores")
    budget = f"seconds the run may take, engine start included ({QUICK_BUDGET_S:.0f} with --quick, else {FULL_BUDGET_S:.0f})"
    parser.add_argument("--time-budget-s", type=float, help=budget)
    parser.add_argument("--dtype", default="auto", help="as served (auto)")
    parser.add_argument("--max-model-len", type=int, help="as served")
    parser.add_argument("--block-size", type=int, help="as served")
    parser.add_argument("--max-num-seqs", type=int, help="as served")
    chunks = "total batch tokens of the chunks a router may choose"
    parser.add_argument("--chunk-candidates", type=_integers, default=DEFAULT_CHUNK_CANDIDATES, metavar="N,N,...", help=chunks)
    parser.add_argument("--cpus", metavar="LIST", help="pin the engine to these CPUs and one thread each, as in 0 or 0-3,6")
    parser.add_argument("--kv-cache-gib", type=int, help="KV cache of a CPU engine (VLLM_CPU_KVCACHE_SPACE, or 1)")
    parser.add_argument("engine_args", nargs="*", metavar="-- VLLM_ARGS", help="further vLLM flags, as served")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure, fit, write; raises KairosError with one line when any of these cannot be done."""
    from vllm_kairos.fitting.artifact import save_profile
    from vllm_kairos.profiler.api import measure
    from vllm_kairos.profiler.report import render

    values = vars(arguments).copy()
    out = values.pop("out")
    options = ProfileOptions(**values | {"engine_args": tuple(arguments.engine_args)})
    check_output(out)
    signal.signal(signal.SIGTERM, _stop)  # so that the engine's worker processes end with us
    measured = measure(options, progress_stream=sys.stderr)
    save_profile(measured.profile, out)
    sys.stdout.write(render(measured, out))
    return 0


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers separated by commas, got {text!r}") from None


COMMAND = Command(summary="measure step latency on the real engine and fit a profile", make_parser=make_parser, run=run)
