"""Show how far a sweep is: a bar on a terminal, a plain line every few seconds elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from vllm_kairos.profiler.runner import SweepProgress

LINE_PERIOD_S = 10.0

Show = Callable[[SweepProgress], None]


@contextmanager
def progress_display(stream: TextIO, time_budget_s: float, elapsed_s: Callable[[], float]) -> Iterator[Show]:
    """Yield the function that shows progress on `stream`; the time budget is shown beside it."""
    if not stream.isatty():
        yield _plain(stream, time_budget_s, elapsed_s)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("measuring"), BarColumn(), TextColumn("{task.completed}/{task.total} steps, {task.description}"))
    with Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task("", total=None)

        def show(progress: SweepProgress) -> None:
            clock = f"pass {progress.pass_number}, {elapsed_s():.0f} of {time_budget_s:.0f} s"
            bar.update(task, completed=progress.measured, total=progress.planned, description=clock)

        yield show


def _plain(stream: TextIO, time_budget_s: float, elapsed_s: Callable[[], float]) -> Show:
    next_line_s = 0.0

    def show(progress: SweepProgress) -> None:
        nonlocal next_line_s
        now_s = elapsed_s()
        if now_s < next_line_s and progress.measured < progress.planned:
            return
        next_line_s = now_s + LINE_PERIOD_S
        done = f"{progress.measured}/{progress.planned} steps"
        stream.write(f"kairos profile: {done}, pass {progress.pass_number}, {now_s:.0f} of {time_budget_s:.0f} s\n")
        stream.flush()

    return show
