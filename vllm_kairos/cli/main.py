"""`kairos`: one console script, subcommands found by entry point."""

import sys
from importlib.metadata import EntryPoint, entry_points

from vllm_kairos import __version__
from vllm_kairos.cli.command import Command
from vllm_kairos.errors import KairosError

GROUP = "vllm_kairos.commands"


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; every KairosError becomes one line on stderr and exit status 2."""
    args = sys.argv[1:] if argv is None else argv
    commands = {point.name: point for point in entry_points(group=GROUP)}
    if not args or args[0] in ("-h", "--help", "help"):
        sys.stdout.write(_usage(commands))
        return 0
    if args[0] in ("-V", "--version"):
        sys.stdout.write(f"vllm-kairos {__version__}\n")
        return 0
    name, *rest = args
    if name not in commands:
        return _fail(f"command must be one of {', '.join(sorted(commands))}, got {name!r}")
    command: Command = commands[name].load()
    try:
        return command.run(command.make_parser(f"kairos {name}").parse_args(rest))
    except KairosError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130


def _usage(commands: dict[str, EntryPoint]) -> str:
    lines = [f"  {name:<10} {commands[name].load().summary}" for name in sorted(commands)]
    return "usage: kairos COMMAND [options]\n\n" + "\n".join(lines) + "\n\n`kairos COMMAND --help` lists a command's options.\n"


def _fail(message: str) -> int:
    sys.stderr.write(f"kairos: {' '.join(message.split())}\n")
    return 2
