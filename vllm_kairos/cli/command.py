"""A subcommand as a value: how to add its flags and how to run it."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One `kairos` subcommand, found through the `vllm_kairos.commands` entry points.

    `run` returns the exit status and may raise KairosError, which `main` prints as one line.
    `make_parser` builds the whole parser for `kairos NAME`.
    """

    summary: str
    make_parser: Callable[[str], argparse.ArgumentParser]
    run: Callable[[argparse.Namespace], int]
