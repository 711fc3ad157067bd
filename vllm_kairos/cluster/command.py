"""`kairos up`: start a prefill/decode cluster on this machine, and stop all of it on Ctrl-C."""

import argparse
import asyncio
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_kairos.cli.command import Command, OneLineParser

if TYPE_CHECKING:
    from vllm_kairos.cluster.local import LocalCluster
    from vllm_kairos.cluster.spec import ClusterSpec

_EPILOG = """\
A settings file (--config) holds the same names with underscores, and lists as lists:
  prefill: 1
  decode: 2
  model: /models/my-model
  pins: ["0", "1", "1"]
  policy: kairos
  profile: profile.json
and more (docs/local-cluster.md): engine, emulation, router_args, prefill_args, decode_args, aggregated.
Flags win over the file. Flags after `--` go to every vLLM server.
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Build the parser of `kairos up`; every default is None so that the file's values can shine through."""
    parser = OneLineParser(prog=prog, description=__doc__, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (YAML)")
    parser.add_argument("--prefill", type=int, metavar="N", help="prefill servers (1)")
    parser.add_argument("--decode", type=int, metavar="N", help="decode servers (1)")
    parser.add_argument("--model", metavar="DIR", help="checkpoint directory or owner/name (the converted small model)")
    parser.add_argument("--served-model-name", metavar="NAME", help="name that clients use (the directory's name)")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="what the servers compute on (cpu)")
    parser.add_argument("--scheduler", choices=("kairos", "stock"), help="ours, or vLLM's own for comparison (kairos)")
    parser.add_argument("--dtype", help="vLLM's --dtype (bfloat16 on CPUs, else auto)")
    pins = "one per server, prefill first: CPUs as in 0-3,6 or CUDA devices as in 0,1"
    parser.add_argument("--pins", nargs="+", metavar="LIST", help=pins)
    parser.add_argument("--kv-cache-gib", type=int, metavar="GIB", help="KV cache of each CPU server (1)")
    parser.add_argument("--base-port", type=int, metavar="PORT", help="first of consecutive ports (any free ones)")
    parser.add_argument("--router", action=argparse.BooleanOptionalAction, help="start the router too (yes)")
    parser.add_argument("--router-port", type=int, metavar="PORT", help="the router's port (any free one)")
    parser.add_argument("--policy", metavar="POLICY", help="the router's --deflect-policy")
    parser.add_argument("--profile", metavar="FILE", help="latency profile written by `kairos profile`")
    emulate = "emulate the device of this profile, a file or a shipped name: real servers, no computation"
    parser.add_argument("--emulate", metavar="PROFILE", help=emulate)
    parser.add_argument("--log-dir", metavar="DIR", help="where logs go (a new temporary directory)")
    parser.add_argument("--startup-timeout-s", type=float, metavar="S", help="limit until all are healthy (600)")
    parser.add_argument("vllm_args", nargs="*", metavar="-- VLLM_ARGS", help="further flags of every vLLM server")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM (status 0); a process that dies raises ClusterError after all were stopped."""
    return asyncio.run(_serve(spec_from(arguments)))


def spec_from(arguments: argparse.Namespace) -> "ClusterSpec":
    """Settings file first, flags over it. Raises ConfigError."""
    from vllm_kairos.cluster.spec import Device, Scheduler, make_spec, read_settings

    flags: dict[str, Any] = {name: value for name, value in vars(arguments).items() if value not in (None, [])}
    path = flags.pop("config", None)
    readers: dict[str, Any] = {"device": Device, "scheduler": Scheduler, "pins": tuple, "vllm_args": tuple}
    settings = {name: readers.get(name, lambda value: value)(value) for name, value in flags.items()}
    return make_spec((read_settings(path) if path is not None else {}) | settings)


async def _serve(spec: "ClusterSpec") -> int:
    from vllm_kairos.cluster.local import LocalCluster
    from vllm_kairos.cluster.progress import StartupProgress

    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    progress = StartupProgress()
    cluster = LocalCluster(spec, report=progress.report)
    progress.say(f"logs: {cluster.log_dir}")
    try:
        with progress:
            await cluster.start()
        progress.say(describe(spec, cluster))
        await cluster.watch()
    except asyncio.CancelledError:
        progress.say("stopping")
    finally:
        cluster.stop()
    return 0


def describe(spec: "ClusterSpec", cluster: "LocalCluster") -> str:
    """What is running where, and a first request to try."""
    plan = cluster.plan
    lines = [f"{server.name:<7} {server.url}" for server in plan.servers]
    target = plan.servers[-1].url
    if spec.router:
        target = cluster.router_url
        lines.append(f"router  {target}")
    body = f'{{"model": "{plan.served_model_name}", "prompt": "The capital of France is", "max_tokens": 8}}'
    lines.append(f"try: curl {target}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    return "\n".join([*lines, "Ctrl-C stops everything."])


COMMAND = Command(summary="start a prefill/decode cluster on this machine", make_parser=make_parser, run=run)
