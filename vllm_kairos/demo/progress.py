"""What a person sees while the demo runs, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class DemoProgress:
    """Steps as plain lines, a load as a bar."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._started_s = time.monotonic()

    def step(self, text: str) -> None:
        """Say what happens next."""
        self._console.print(f"[{time.monotonic() - self._started_s:4.0f} s] {text}", markup=False, soft_wrap=True)

    def report(self, name: str, text: str) -> None:
        """Take one report of a LocalCluster."""
        if text != "starting":
            self.step(f"  {name}: {text}")

    @contextmanager
    def load(self, text: str, requests: int) -> Iterator[Callable[[], None]]:
        """Show a bar; call what is yielded as each request ends."""
        self.step(f"{text}: {requests} requests")
        columns = (TextColumn("  answered"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task("answered", total=requests)
            yield lambda: bar.advance(task)
