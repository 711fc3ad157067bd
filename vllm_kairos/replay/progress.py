"""What a person sees while requests are sent, on stderr."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vllm_kairos.replay.sample import Sample

_LONG_WAIT_S = 5.0


class LiveView:
    """A bar of the requests that have ended, with those on their way, those that failed and what is waited for."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar, self._task = bar, task
        self._sent = self._ended = self._failed = 0
        self._worst_lag_s = 0.0

    def waiting(self, now_s: float, due_s: float) -> None:
        """Say so when the next request is far off."""
        wait_s = due_s - now_s
        self._show(f"next request in {wait_s:,.0f} s" if wait_s >= _LONG_WAIT_S else "")

    def sent(self, lag_s: float) -> None:
        """Count one more on its way."""
        self._sent += 1
        self._worst_lag_s = max(self._worst_lag_s, lag_s)
        self._show("")

    def ended(self, sample: Sample) -> None:
        """Count one more at its end."""
        self._ended += 1
        self._failed += not sample.ok
        self._bar.advance(self._task)

    def _show(self, wait: str) -> None:
        state = f"{self._sent - self._ended} on their way, {self._failed} failed, worst lag {self._worst_lag_s * 1e3:,.0f} ms"
        self._bar.update(self._task, state=f"{state}, {wait}".rstrip(", "))


@contextmanager
def live_view(requests: int) -> Iterator[LiveView]:
    """Show a bar for as long as the context is open."""
    columns = (
        TextColumn("requests"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[state]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4) as bar:
        yield LiveView(bar, bar.add_task("requests", total=requests, state=""))
