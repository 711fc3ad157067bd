"""`kairos replay`: send a trace to a running endpoint and report what its users would have seen."""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from vllm_kairos.cli.command import Command, OneLineParser
from vllm_kairos.errors import ConfigError

if TYPE_CHECKING:
    from vllm_kairos.replay.run import Outcome
    from vllm_kairos.replay.settings import ReplaySettings
    from vllm_kairos.workload.request import Workload

INTERRUPTED_STATUS = 130
_MOST_SHOWN = 80
_KEY_VARIABLE = "OPENAI_API_KEY"


class _RememberingParser(OneLineParser):
    """Keeps the words it was given, for results.json."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed = super().parse_args(args, namespace)
        parsed.words = [*self.prog.split(), *(sys.argv[2:] if args is None else args)]
        return parsed


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos replay`."""
    parser = _RememberingParser(prog=prog, description=__doc__)
    _add_endpoint_flags(parser.add_argument_group("endpoint"))
    _add_load_flags(parser.add_argument_group("load"))
    _add_pace_flags(parser.add_argument_group("pace"))
    _add_report_flags(parser.add_argument_group("report"))
    return parser


def _add_endpoint_flags(group: Any) -> None:
    group.add_argument("--url", default="http://127.0.0.1:8000", help="server or router, with or without /v1 (%(default)s)")
    group.add_argument("--endpoint", choices=("completions", "chat"), default="completions", help="which API (%(default)s)")
    group.add_argument("--model", help="model to ask for (the first of /v1/models)")
    group.add_argument("--api-key", help=f"bearer key (${_KEY_VARIABLE})")
    words = "vllm: enforce output lengths and count tokens per chunk; openai: send only what OpenAI's API knows (%(default)s)"
    group.add_argument("--dialect", choices=("vllm", "openai"), default="vllm", help=words)
    group.add_argument("--extra-body", metavar="JSON", help="object with more fields for every request's body")
    group.add_argument("--prompts", choices=("tokens", "text"), default="tokens", help="of completions (%(default)s)")
    aim = "what has the trace's length where prompts are text: the whole prompt, or the text without template (%(default)s)"
    group.add_argument("--aim", choices=("total", "content"), default="total", help=aim)
    group.add_argument("--vocabulary", metavar="LOW:HIGH", default="1000:30000", help="range of token ids (%(default)s)")
    group.add_argument("--timeout-s", type=float, default=600.0, help="most time for one answer, 0 for none (%(default)g)")


def _add_load_flags(group: Any) -> None:
    group.add_argument("--trace", type=Path, metavar="FILE", help="trace file, plain or gzipped")
    group.add_argument("--format", default="auto", help="the trace's format (told by its first row)")
    group.add_argument("--workload", metavar="NAME", help="draw one of the paper's instead: LPLD, LPHD, HPLD, HPHD, Bursty")
    group.add_argument("--requests", type=int, default=100, help="requests to draw (%(default)s)")
    group.add_argument("--scv", type=float, help="squared coefficient of variation of drawn gaps (1, or the workload's own)")
    group.add_argument("--slice", metavar="START:END", help="take this span of the trace, in its seconds")
    group.add_argument("--limit", type=int, metavar="N", help="take the first N requests, after slicing")
    group.add_argument("--max-prompt-tokens", type=int, metavar="N", help="cut longer prompts to this length")
    group.add_argument("--drop-longer", action="store_true", help="drop requests with longer prompts instead")
    loop = "requests of a session wait for each other (yes)"
    group.add_argument("--closed-loop", action=argparse.BooleanOptionalAction, default=True, help=loop)
    group.add_argument("--seed", type=int, default=0, help="of prompts and of all that is drawn (%(default)s)")


def _add_pace_flags(group: Any) -> None:
    group.add_argument("--speed", type=float, default=1.0, help="divide all gaps by this: 2 doubles the rate (%(default)g)")
    group.add_argument("--rate", type=float, help="mean requests per second instead")
    group.add_argument("--ramp-s", type=float, default=0.0, help="let the rate rise from 0 for so long; not measured (0)")
    group.add_argument("--max-gap-s", "--gap-cap-s", type=float, help="shorten longer gaps to this, before --speed or --rate")
    group.add_argument("--spread-s", type=float, default=0.0, help="move each request later by a random part of this (0)")


def _add_report_flags(group: Any) -> None:
    group.add_argument("--ttft-slo-ms", type=float, help="TTFT objective of every request, sent along (else judged by 4000)")
    group.add_argument("--tbt-slo-ms", "--tpot-slo-ms", type=float, help="TBT objective, likewise (else judged by 70)")
    slo = "send objectives of flags or trace as x-slo-ttft-ms, x-slo-tbt-ms and x-slo-tpot-ms (yes)"
    group.add_argument("--slo-headers", action=argparse.BooleanOptionalAction, default=True, help=slo)
    group.add_argument("--warn-lag-ms", type=float, default=10.0, help="warn when P99 send lag is above this (%(default)g)")
    group.add_argument("--out", type=Path, default=Path("kairos-replay"), metavar="DIR", help="where results go (%(default)s)")
    group.add_argument("--plots", action=argparse.BooleanOptionalAction, default=True, help="draw pictures (yes)")
    group.add_argument("--token-times", action="store_true", help="keep every arrival in requests.jsonl")
    group.add_argument("--fail-on-errors", action="store_true", help="exit with 1 when a request failed")


def run(arguments: argparse.Namespace) -> int:
    """Replay, print the table and write the results."""
    import uvloop

    from vllm_kairos.replay.load import build_workload
    from vllm_kairos.replay.plot import need_matplotlib
    from vllm_kairos.replay.run import Stopped
    from vllm_kairos.replay.write import WriteOptions, write_results
    from vllm_kairos.results.out_dir import make_out_dir

    settings = settings_of(arguments)
    if arguments.plots:
        need_matplotlib()
    workload = build_workload(settings.load)
    out = make_out_dir(arguments.out)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(_replay(settings, workload))
    except Stopped:
        sys.stderr.write("kairos replay: stopped before anything was sent\n")
        return INTERRUPTED_STATUS
    options = WriteOptions(token_times=arguments.token_times, plots=arguments.plots)
    figures = write_results(out, command_line(arguments.words), settings, workload, outcome, options)
    if outcome.interrupted:
        return INTERRUPTED_STATUS
    return 1 if arguments.fail_on_errors and figures.failed else 0


async def _replay(settings: "ReplaySettings", workload: "Workload") -> "Outcome":
    """Behind a live view, until done or Ctrl-C; a second Ctrl-C ends the process at once."""
    from vllm_kairos.replay.http_sender import allow_open_files
    from vllm_kairos.replay.progress import live_view
    from vllm_kairos.replay.run import replay

    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    allow_open_files(len(workload.requests))
    loop.add_signal_handler(signal.SIGINT, interrupt)
    with live_view(len(workload.requests)) as observer:
        return await replay(settings, workload, observer, stop)


def settings_of(arguments: argparse.Namespace) -> "ReplaySettings":
    """The flags, checked. Raises ConfigError."""
    from vllm_kairos.replay.figures import Objectives
    from vllm_kairos.replay.prompts import Vocabulary
    from vllm_kairos.replay.settings import ReplaySettings

    return ReplaySettings(
        load=_load_settings(arguments),
        url=arguments.url,
        kind=arguments.endpoint,
        model=arguments.model,
        dialect=arguments.dialect,
        api_key=arguments.api_key or os.environ.get(_KEY_VARIABLE, ""),
        extra_body=_object(arguments.extra_body),
        slo_headers=arguments.slo_headers,
        prompts=arguments.prompts,
        aim=arguments.aim,
        vocabulary=Vocabulary.parse(arguments.vocabulary),
        timeout_s=arguments.timeout_s or None,
        objectives=Objectives(ttft_s=(arguments.ttft_slo_ms or 4000.0) / 1e3, tbt_s=(arguments.tbt_slo_ms or 70.0) / 1e3),
        warn_lag_s=arguments.warn_lag_ms / 1e3,
    )


def _load_settings(arguments: argparse.Namespace) -> Any:
    from dataclasses import fields

    from vllm_kairos.replay.settings import LoadSettings, read_slice

    given = {item.name: getattr(arguments, item.name) for item in fields(LoadSettings) if item.name != "slice_s"}
    return LoadSettings(**given, slice_s=None if arguments.slice is None else read_slice(arguments.slice))


def _object(text: str | None) -> dict[str, Any]:
    shown = text if text is None or len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
    try:
        value = msgspec.json.decode(text or "{}")  # takes neither NaN nor half characters, which no server reads either
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"--extra-body must be a JSON object, got {shown!r}: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"--extra-body must be a JSON object, got {shown!r}")
    return value


def command_line(words: Sequence[str]) -> str:
    """What was typed, less the key."""
    kept, hide = [], False
    for word in words:
        kept.append("***" if hide else "--api-key=***" if word.startswith("--api-key=") else word)
        hide = not hide and word == "--api-key"
    return shlex.join(kept)


COMMAND = Command(summary="send a trace to a running endpoint and measure it", make_parser=make_parser, run=run)
