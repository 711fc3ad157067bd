"""A limit of time for a `with` block of a task: as asyncio.timeout, which takes three times as long."""

import asyncio
from types import TracebackType
from typing import Self


class TimeLimit:
    """Cancels what its task awaits within the block, and raises TimeoutError out of it, `limit_s` after its beginning.

    None: only `expire` ends it.
    """

    __slots__ = ("_cancelling", "_limit_s", "_task", "_timer", "expired")
    _task: asyncio.Task[object]

    def __init__(self, limit_s: float | None = None) -> None:
        self._limit_s = limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling = 0
        self.expired = False

    def expire(self) -> None:
        """The time is up."""
        if not self.expired:
            self.expired = True
            self._task.cancel()

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        if self._limit_s is not None:
            self._timer = task.get_loop().call_later(self._limit_s, self.expire)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
