"""Circuit breakers, one per worker: a pure state machine, time given as an argument."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum

from kairos_router.config import BreakerSettings


class BreakerState(IntEnum):
    """Numbered as the `cb_state` gauge shows them."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2


@dataclass(slots=True)
class _Breaker:
    state: BreakerState = BreakerState.CLOSED
    failures_at_s: deque[float] = field(default_factory=deque)  # within the window, oldest first
    successes: int = 0  # in a row, while half open
    opened_at_s: float = 0.0


OnChange = Callable[[str, BreakerState, BreakerState], None]


class Breakers:
    """CLOSED -(failures within the window)-> OPEN -(time)-> HALF_OPEN -(successes)-> CLOSED; one failure reopens."""

    def __init__(self, settings: BreakerSettings, on_change: OnChange = lambda name, old, new: None) -> None:
        self._settings = settings
        self._on_change = on_change
        self._breakers: dict[str, _Breaker] = {}

    def allow(self, name: str, now_s: float) -> bool:
        """Say whether a request may go to `name`; moves an open breaker whose time is up to half open."""
        self._expire(name, now_s)
        return self.state(name) is not BreakerState.OPEN

    def success(self, name: str, now_s: float) -> None:
        """Count one answered request."""
        self._expire(name, now_s)
        breaker = self._breakers.get(name)
        if breaker is None or breaker.state is not BreakerState.HALF_OPEN:
            return
        breaker.successes += 1
        if breaker.successes >= self._settings.success_threshold:
            breaker.failures_at_s.clear()
            self._move(name, breaker, BreakerState.CLOSED)

    def failure(self, name: str, now_s: float) -> None:
        """Count one request that failed by the worker's fault."""
        self._expire(name, now_s)
        breaker = self._breakers.setdefault(name, _Breaker())
        if breaker.state is BreakerState.OPEN:
            return  # a request sent before it opened; it is out already
        self._remember(breaker, now_s)
        if breaker.state is BreakerState.HALF_OPEN or len(breaker.failures_at_s) >= self._settings.failure_threshold:
            breaker.opened_at_s = now_s
            self._move(name, breaker, BreakerState.OPEN)

    def state(self, name: str) -> BreakerState:
        breaker = self._breakers.get(name)
        return BreakerState.CLOSED if breaker is None else breaker.state

    def expire(self, now_s: float) -> None:
        """Move every open breaker whose time is up to half open, so that its worker gets a trial."""
        for name in tuple(self._breakers):
            self._expire(name, now_s)

    def reset(self, name: str) -> None:
        """Begin anew with a worker that did: what failed was the process before it."""
        breaker = self._breakers.get(name)
        if breaker is None:
            return
        breaker.failures_at_s.clear()
        if breaker.state is not BreakerState.CLOSED:
            self._move(name, breaker, BreakerState.CLOSED)

    def forget(self, name: str) -> None:
        """Drop a removed worker's breaker."""
        self._breakers.pop(name, None)

    def _remember(self, breaker: _Breaker, now_s: float) -> None:
        times = breaker.failures_at_s
        times.append(now_s)
        while times[0] < now_s - self._settings.window_s:
            times.popleft()

    def _expire(self, name: str, now_s: float) -> None:
        breaker = self._breakers.get(name)
        if breaker is None or breaker.state is not BreakerState.OPEN:
            return
        if now_s - breaker.opened_at_s >= self._settings.open_s:
            self._move(name, breaker, BreakerState.HALF_OPEN)

    def _move(self, name: str, breaker: _Breaker, new: BreakerState) -> None:
        old, breaker.state, breaker.successes = breaker.state, new, 0
        self._on_change(name, old, new)
