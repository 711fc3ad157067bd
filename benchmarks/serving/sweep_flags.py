"""The flags of every sweep over contenders, rates and repeats."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_kairos.errors import ConfigError


def add_sweep_flags(parser: argparse.ArgumentParser, *, repeats: int) -> None:
    """Add them; `--setting` and `--contenders`, whose names differ, are the caller's. `repeats` is the default."""
    parser.add_argument("--rates", nargs="+", type=float, metavar="RPS", help="requests per second (the setting's)")
    parser.add_argument(
        "--duration-s", type=float, metavar="S", help="a cell sends rate x S requests (the setting's, or its count)"
    )
    about = f"times that every cell is run ({repeats})"
    parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=about)
    parser.add_argument("--out", type=Path, default=Path("comparison"), metavar="DIR", help="where results go (%(default)s)")
    parser.add_argument("--resume", action="store_true", help="leave out the cells that DIR has")
    parser.add_argument("--retry-failed", action="store_true", help="with --resume, run those again that failed")
    parser.add_argument("--plan-only", action="store_true", help="say how many cells there are and how long they take")
    parser.add_argument("--report-only", action="store_true", help="write the report of the cells that DIR has")


def add_traces_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--traces`; the environment's folder is its default."""
    parser.add_argument(
        "--traces",
        type=Path,
        default=os.environ.get("KAIROS_TRACES") or None,
        metavar="DIR",
        help="folder of public traces (KAIROS_TRACES)",
    )


def setting_changes(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a Setting that flags override. Raises ConfigError."""
    if args.repeats < 1:
        raise ConfigError(f"--repeats must be >= 1, got {args.repeats}")
    given: dict[str, Any] = {"contenders": args.contenders, "rates_rps": args.rates, "duration_s": args.duration_s}
    changes = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value is not None}
    timed = {"requests": None} if "duration_s" in changes else {}  # a setting's own count would go before the flag
    return changes | timed


def shown_flags(args: argparse.Namespace, others: Sequence[str] = (), *, out: str = "DIR") -> list[str]:
    """The command's words with nothing of this machine's folders in them; `others` come before where results go."""
    words = ["--setting", Path(args.setting).name, "--repeats", str(args.repeats)]
    for flag, values in (("--contenders", args.contenders), ("--rates", args.rates)):
        words += [flag, *(f"{value:g}" if isinstance(value, float) else value for value in values)] if values else []
    words += ["--duration-s", f"{args.duration_s:g}"] if args.duration_s is not None else []
    return [*words, *others, "--out", out]
