"""`kairos profile`: measure step latency on the real engine, or fit it to recorded steps, and write a profile."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.errors import ConfigError
from vllm_kairos.profiler.options import (
    FULL_BUDGET_S,
    QUICK_BUDGET_S,
    LogOptions,
    ProfileOptions,
    check_output,
)

_EPILOG = """\
Give the engine the flags its servers are started with; flags without an option here go after `--`:
  kairos profile --model DIR --out profile.json --quick --dtype bfloat16 --max-model-len 4096 \\
      --block-size 32 --max-num-seqs 16 --cpus 0 -- --enforce-eager
Or have no engine run, and fit what the engine setting kairos.step_record wrote in production:
  kairos profile --from-log p0.jsonl d0.jsonl --out profile.json
"""
_LOG_ONLY = frozenset({"from_log", "like"})
_BOTH = frozenset({"model", "out", "chunk_candidates"})


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos profile`."""
    parser = OneLineParser(prog=prog, description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model folder or hub name; with --from-log only its name in the profile (as recorded)")
    parser.add_argument("--out", required=True, type=Path, help="profile to write (JSON)")
    parser.add_argument("--quick", action="store_true", help="coarser sweep, under 3 minutes on 2 CPU cores")
    budget = f"seconds the run may take, engine start included ({QUICK_BUDGET_S:.0f} with --quick, else {FULL_BUDGET_S:.0f})"
    parser.add_argument("--time-budget-s", type=float, help=budget)
    parser.add_argument("--dtype", help="as served (auto)")
    parser.add_argument("--max-model-len", type=int, help="as served")
    parser.add_argument("--block-size", type=int, help="as served")
    parser.add_argument("--max-num-seqs", type=int, help="as served")
    chunks = "total batch tokens of the chunks a router may choose"
    parser.add_argument("--chunk-candidates", type=_integers, metavar="N,N,...", help=chunks)
    parser.add_argument("--cpus", metavar="LIST", help="pin the engine to these CPUs and one thread each, as in 0 or 0-3,6")
    parser.add_argument("--kv-cache-gib", type=int, help="KV cache of a CPU engine (VLLM_CPU_KVCACHE_SPACE, or 1)")
    log = "fit the steps in these files of kairos.step_record instead of measuring"
    parser.add_argument("--from-log", type=Path, nargs="+", metavar="FILE", help=log)
    like = "with --from-log: profile, file or shipped name, for what the files do not say (the one they were recorded with)"
    parser.add_argument("--like", metavar="PROFILE", help=like)
    parser.add_argument("engine_args", nargs="*", metavar="-- VLLM_ARGS", help="further vLLM flags, as served")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Measure or read, fit, write; raises KairosError with one line when any of these cannot be done."""
    check_output(arguments.out)
    _refuse_spaced_candidates(arguments)
    _refuse_what_does_nothing(arguments)
    return _measure(arguments) if arguments.from_log is None else _fit_log(arguments)


def _measure(arguments: argparse.Namespace) -> int:
    from vllm_kairos.fitting.artifact import save_profile
    from vllm_kairos.profiler.api import measure
    from vllm_kairos.profiler.report import render

    options = measuring_options(arguments)
    signal.signal(signal.SIGTERM, _stop)  # so that the engine's worker processes end with us
    measured = measure(options, progress_stream=sys.stderr)
    save_profile(measured.profile, arguments.out)
    sys.stdout.write(render(measured, arguments.out))
    return 0


def _fit_log(arguments: argparse.Namespace) -> int:
    from vllm_kairos.fitting.artifact import save_profile
    from vllm_kairos.profiler.from_log import fit_log
    from vllm_kairos.profiler.log_report import render_log

    options = LogOptions(
        files=tuple(arguments.from_log),
        like=arguments.like,
        model=arguments.model,
        chunk_candidates=arguments.chunk_candidates,
    )
    fitted = fit_log(options)
    save_profile(fitted.profile, arguments.out)
    sys.stdout.write(render_log(fitted, arguments.out))
    return 0


def measuring_options(arguments: argparse.Namespace) -> ProfileOptions:
    """Read the options of measuring; raises ConfigError."""
    if arguments.model is None:
        raise ConfigError("--model is required unless --from-log is given")
    values = {name: value for name, value in vars(arguments).items() if name not in _LOG_ONLY | {"out"} and value is not None}
    return ProfileOptions(**values | {"engine_args": tuple(arguments.engine_args)})


def _refuse_spaced_candidates(arguments: argparse.Namespace) -> None:
    """What follows a space would be a flag of vLLM's; none is a number."""
    given, rest = arguments.chunk_candidates, arguments.engine_args
    if given is not None and rest and rest[0].rstrip(",").isdecimal():
        written = f"{','.join(map(str, given))} {rest[0]}"
        raise ConfigError(f"--chunk-candidates must be numbers with commas between, as in 64,128, got {written!r}")


def _refuse_what_does_nothing(arguments: argparse.Namespace) -> None:
    """Options of measuring with --from-log, and the other way round."""
    from_log = arguments.from_log is not None
    idle = vars(arguments).keys() - _LOG_ONLY - _BOTH if from_log else _LOG_ONLY
    for name in sorted(idle):
        if getattr(arguments, name):
            flag = "-- VLLM_ARGS" if name == "engine_args" else "--" + name.replace("_", "-")
            raise ConfigError(f"{flag} does nothing {'with' if from_log else 'without'} --from-log")


def _stop(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers separated by commas, got {text!r}") from None


COMMAND = Command(
    summary="measure step latency on the real engine, or read recorded steps, and fit a profile",
    make_parser=make_parser,
    run=run,
)
