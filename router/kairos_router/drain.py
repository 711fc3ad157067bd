"""A graceful end: no new requests, running ones go on up to a limit, and whoever is cut off is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kairos_router.refusal import Refusal


class CutOff(Refusal):
    """A request was still running at the end of the drain."""

    def __init__(self) -> None:
        super().__init__(503, "cut-off", "this router shut down before the request was done", retry_after_s=1.0)


class Drain:
    """Counts requests under way and refuses new ones once draining."""

    def __init__(self) -> None:
        self._running: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def active(self) -> int:
        """Requests under way."""
        return len(self._running)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Count one request; raises Refusal(503) while draining, CutOff when its time is up."""
        if self.draining:
            raise Refusal(503, "draining", "this router is shutting down", retry_after_s=1.0)
        limit = asyncio.timeout(None)  # without a limit until `finish` sets one
        try:
            async with limit:
                self._running.add(limit)
                self._idle.clear()
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise CutOff from None
        finally:
            self._running.discard(limit)
            if not self._running:
                self._idle.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse new requests, wait for the running ones, cut off the rest; return how many those were."""
        self.draining = True
        await self._wait(limit_s)
        left = tuple(self._running)
        for limit in left:
            limit.reschedule(0.0)  # a time long past
        return len(left)

    async def _wait(self, limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            pass
