"""What a person sees while simulations run, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def request_bar(what: str, requests: int | None) -> Iterator[Callable[[int], None]]:
    """A bar over the requests of all simulations together; call what is yielded with how many more have ended.

    `requests` None: nobody knows how many there will be.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{what}, requests", total=requests)
        yield lambda more: bar.advance(task, more)
