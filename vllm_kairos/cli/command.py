"""A subcommand as a value: how to add its flags and how to run it."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from vllm_kairos.errors import ConfigError


class OneLineParser(argparse.ArgumentParser):
    """An argparse parser whose every complaint is one ConfigError that names the flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return parsed

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Raise ConfigError for arguments that no flag takes."""
        raise ConfigError(f"{unknown[0]}: no such flag of {self.prog!r}; `{self.prog} --help` lists them")

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


@dataclass(frozen=True, slots=True)
class Command:
    """One `kairos` subcommand, found through the `vllm_kairos.commands` entry points.

    `run` returns the exit status and may raise KairosError, which `main` prints as one line.
    `make_parser` builds the whole parser for `kairos NAME`.
    """

    summary: str
    make_parser: Callable[[str], argparse.ArgumentParser]
    run: Callable[[argparse.Namespace], int]
