"""How many requests are served at once, how many wait, how long, and how fast they may come."""

import asyncio
from collections.abc import Callable

from kairos_router.config import LimitSettings
from kairos_router.metrics import RouterMetrics
from kairos_router.refusal import Refusal

_RETRY_AFTER_S = 1.0


class TokenBucket:
    """Lets `rate_per_s` requests through on average and one second's worth at once; pure, time is an argument."""

    def __init__(self, rate_per_s: float, now_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._burst = max(1.0, rate_per_s)
        self._tokens = self._burst
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        self._tokens = min(self._burst, self._tokens + (now_s - self._at_s) * self._rate_per_s)
        self._at_s = now_s
        if self._tokens < 1:
            return (1 - self._tokens) / self._rate_per_s
        self._tokens -= 1
        return 0.0


class Admission:
    """A bounded number of slots with a bounded queue in front of them."""

    def __init__(self, limits: LimitSettings, metrics: RouterMetrics, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._slots = asyncio.Semaphore(limits.max_concurrent_requests)
        self._waiting = 0
        rate = limits.rate_limit_requests_per_s
        self._bucket = None if rate is None else TokenBucket(rate, clock())

    async def acquire(self) -> None:
        """Take a slot; raises Refusal: 429 when the queue is full or the rate exceeded, 408 after the queue timeout."""
        self._check_rate()
        if self._slots.locked():
            await self._queue()
        else:
            await self._slots.acquire()

    def release(self) -> None:
        """Give a slot back."""
        self._slots.release()

    def _check_rate(self) -> None:
        wait_s = 0.0 if self._bucket is None else self._bucket.wait_s(self._clock())
        if wait_s > 0:
            limit = self._limits.rate_limit_requests_per_s
            raise Refusal(429, "rate-limited", f"more than {limit:g} requests per second", retry_after_s=wait_s)

    async def _queue(self) -> None:
        if self._waiting >= self._limits.queue_size:
            message = f"{self._limits.max_concurrent_requests} requests run and {self._waiting} wait, which is the limit"
            raise Refusal(429, "queue-full", message, retry_after_s=_RETRY_AFTER_S)
        self._count_waiting(+1)
        try:
            async with asyncio.timeout(self._limits.queue_timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            message = f"request waited {self._limits.queue_timeout_s:g} s for a slot"
            raise Refusal(408, "queue-timeout", message, retry_after_s=_RETRY_AFTER_S) from None
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        self._waiting += change
        self._metrics.queued(self._waiting)
