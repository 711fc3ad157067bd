"""A graceful end: no new requests, running ones go on, up to a limit."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from kairos_router.refusal import Refusal


class Drain:
    """Counts requests under way and refuses new ones once draining."""

    def __init__(self) -> None:
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def active(self) -> int:
        """Requests under way."""
        return self._active

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count one request; raises Refusal(503) while draining."""
        if self.draining:
            raise Refusal(503, "draining", "this router is shutting down", retry_after_s=1.0)
        self._active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._active -= 1
            if self._active == 0:
                self._idle.set()

    async def finish(self, limit_s: float) -> int:
        """Refuse new requests, wait for the running ones; return how many were still running at the limit."""
        self.draining = True
        try:
            async with asyncio.timeout(limit_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return self._active
