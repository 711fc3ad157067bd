"""What a person sees while a cluster starts: one live line, or plain lines where there is no terminal."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status


class StartupProgress:
    """Shows each process's latest word; error lines from logs stay on the screen above."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._states: dict[str, str] = {}
        self._started_s = time.monotonic()
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def report(self, name: str, text: str) -> None:
        """Take one report of a LocalCluster."""
        is_state = text == "starting" or text.startswith(("healthy", "ready"))
        if is_state:
            self._states[name] = text
        if self._status is None or not is_state:
            self._console.print(f"[{time.monotonic() - self._started_s:5.0f} s] {name}: {text}", markup=False, soft_wrap=True)
        if self._status is not None:
            self._status.update("  ".join(f"{each}: {state}" for each, state in self._states.items()))

    def say(self, text: str) -> None:
        """Print a line of our own."""
        self._console.print(text, markup=False, soft_wrap=True)
        sys.stderr.flush()
