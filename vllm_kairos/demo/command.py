"""`kairos demo`: plain P/D against deflection on this machine, the same bursty load on the same servers."""

import argparse
import asyncio
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.errors import ConfigError

if TYPE_CHECKING:
    from vllm_kairos.demo.progress import DemoProgress
    from vllm_kairos.demo.run import DemoResult, DemoSettings


_UNTIL_PROFILED_PER_S = 1.0


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos demo`."""
    parser = OneLineParser(prog=prog, description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("kairos-demo"), metavar="DIR", help="where results go (kairos-demo)")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each policy, alternating (1)")
    parser.add_argument("--duration-s", type=float, default=75.0, metavar="S", help="length of one run's load (75)")
    parser.add_argument("--rate", type=float, metavar="R", help="requests per second within a burst (from --pressure)")
    pressure = "rate of a burst as a multiple of what the prefill server can take by the profile (1.1)"
    parser.add_argument("--pressure", type=float, default=1.1, metavar="X", help=pressure)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of arrivals and lengths (0)")
    parser.add_argument("--ttft-slo-ms", type=float, default=4000.0, metavar="MS", help="TTFT objective (4000)")
    parser.add_argument("--tbt-slo-ms", type=float, default=250.0, metavar="MS", help="TBT objective (250)")
    parser.add_argument("--model", metavar="DIR", help="checkpoint directory (the converted small model)")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="latency profile (measured once and cached)")
    check = "compare answers of every way to prefill (yes)"
    parser.add_argument("--check-answers", action=argparse.BooleanOptionalAction, default=True, help=check)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and write summary.json, demo.png and report.html; status 1 when a request failed or an answer differs."""
    from vllm_kairos.demo.progress import DemoProgress

    settings = settings_from(arguments)
    out = _out_dir(arguments.out)
    progress = DemoProgress()
    profile = _profile(arguments, settings, progress)
    if arguments.rate is None:
        settings = _with_pressure(settings, profile, arguments.pressure)
    result = asyncio.run(_until_signalled(settings, profile, progress))
    summary = _write(result, profile, out)
    return 0 if _is_good(summary) else 1


def settings_from(arguments: argparse.Namespace) -> "DemoSettings":
    """Check the flags. Raises ConfigError."""
    from vllm_kairos.demo.figures import Objectives
    from vllm_kairos.demo.load import LoadSettings
    from vllm_kairos.demo.run import DemoSettings

    if arguments.repeats < 1:
        raise ConfigError(f"--repeats must be >= 1, got {arguments.repeats}")
    for name in ("ttft_slo_ms", "tbt_slo_ms"):
        if not 0 < getattr(arguments, name) < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} must be a finite number > 0, got {getattr(arguments, name)}")
    if not 0 < arguments.pressure < float("inf"):
        raise ConfigError(f"--pressure must be a finite number > 0, got {arguments.pressure}")
    rate_per_s = _UNTIL_PROFILED_PER_S if arguments.rate is None else arguments.rate
    return DemoSettings(
        load=LoadSettings(rate_per_s=rate_per_s, duration_s=arguments.duration_s, seed=arguments.seed),
        objectives=Objectives(ttft_s=arguments.ttft_slo_ms / 1e3, tbt_s=arguments.tbt_slo_ms / 1e3),
        repeats=arguments.repeats,
        model=arguments.model,
        check_answers=arguments.check_answers,
    )


def _with_pressure(settings: "DemoSettings", profile: Path, pressure: float) -> "DemoSettings":
    """The same pressure on every machine: its rate follows from the machine's profile."""
    from vllm_kairos.demo.load import mean_prompt_s
    from vllm_kairos.fitting.artifact import load_profile

    prompt_s = mean_prompt_s(settings.load, load_profile(profile).step_model)
    return replace(settings, load=replace(settings.load, rate_per_s=pressure / prompt_s))


def _out_dir(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out must be a directory that can be made, got {str(path)!r}: {error.strerror}") from error
    return path


def _profile(arguments: argparse.Namespace, settings: "DemoSettings", progress: "DemoProgress") -> Path:
    from vllm_kairos.cluster.model import find_model
    from vllm_kairos.demo.latency_profile import cached_profile
    from vllm_kairos.fitting.artifact import load_profile

    model = find_model(settings.model)
    if arguments.profile is not None:
        load_profile(arguments.profile)
        return Path(arguments.profile)
    progress.step("profile of this machine (measured once, under 3 minutes)")
    return cached_profile(model, "bfloat16")


async def _until_signalled(settings: "DemoSettings", profile: Path, progress: "DemoProgress") -> "DemoResult":
    """SIGTERM ends the demo as Ctrl-C does, so that its servers end too."""
    from vllm_kairos.demo.run import run_demo

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await run_demo(settings, profile, progress)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _write(result: "DemoResult", profile: Path, out: Path) -> dict[str, Any]:
    from rich.console import Console
    from rich.table import Table

    from vllm_kairos.demo.environment import describe_environment
    from vllm_kairos.demo.plot import draw
    from vllm_kairos.demo.report import answers_line, headline, render
    from vllm_kairos.demo.summary import make_summary, table_rows

    summary = make_summary(result, describe_environment(profile))
    picture = draw(result)
    (out / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    (out / "demo.png").write_bytes(picture)
    (out / "report.html").write_text(render(summary, picture))
    heading, *rows = table_rows(summary)
    table = Table(*heading)
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(table)
    for line in (headline(summary), answers_line(summary), f"wrote summary.json, demo.png and report.html to {out}"):
        console.print(line, markup=False, soft_wrap=True)
    return summary


def _is_good(summary: dict[str, Any]) -> bool:
    answers = summary["answers"]
    all_equal = answers is None or answers["identical"] == answers["prompts"]
    return all_equal and not any(run["errors"] for run in summary["runs"])


COMMAND = Command(summary="compare plain P/D with deflection on this machine", make_parser=make_parser, run=run)
