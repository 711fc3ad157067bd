"""A graceful end: no new requests, running ones go on up to a limit, and whoever is cut off is told."""

import asyncio
from types import TracebackType
from typing import Self

from kairos_router.refusal import Refusal
from kairos_router.time_limit import TimeLimit


class CutOff(Refusal):
    """A request was still running at the end of the drain."""

    def __init__(self) -> None:
        super().__init__(503, "cut-off", "this router shut down before the request was done", retry_after_s=1.0)


class Drain:
    """Counts requests under way and refuses new ones once draining."""

    def __init__(self) -> None:
        self._running: set[TimeLimit] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def active(self) -> int:
        """Requests under way."""
        return len(self._running)

    def request(self) -> "_Request":
        """A context that counts one request; raises Refusal(503) while draining, CutOff when its time is up."""
        return _Request(self)

    def began(self, limit: TimeLimit) -> None:
        """A request is under way; `limit` is what cuts it off."""
        self._running.add(limit)
        self._idle.clear()

    def ended(self, limit: TimeLimit) -> None:
        """A request is over."""
        self._running.discard(limit)
        if not self._running:
            self._idle.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse new requests, wait for the running ones, cut off the rest; return how many those were."""
        self.draining = True
        await self._wait(limit_s)
        left = tuple(self._running)
        for limit in left:
            limit.expire()
        return len(left)

    async def _wait(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            pass


class _Request(TimeLimit):
    """One request, without a limit until `finish` sets one."""

    __slots__ = ("_drain",)

    def __init__(self, drain: Drain) -> None:
        super().__init__()
        self._drain = drain

    def __enter__(self) -> Self:
        if self._drain.draining:
            raise Refusal(503, "draining", "this router is shutting down", retry_after_s=1.0)
        super().__enter__()
        self._drain.began(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._drain.ended(self)
        try:
            super().__exit__(kind, error, trace)
        except TimeoutError:
            raise CutOff from None
        if isinstance(error, TimeoutError) and self.expired:
            raise CutOff from None
