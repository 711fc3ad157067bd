"""The event kernel: a clock of its own and a heap in total order."""

import heapq
from collections.abc import Callable
from math import inf

from vllm_kairos.errors import SimulationError

Action = Callable[[], None]

ARRIVAL, STEP_END, REPORT = range(3)
"""Priorities of events at one instant: what arrives is seen by the step that begins then, and reports come last."""
LATEST_S = 1e9
"""30 years: later, two instants a step apart would be one number, and a simulation would never end."""


_AWAKE_S = 60.0
_Event = tuple[float, int, int, Action]


class Kernel:
    """Runs actions in the order of (time, priority, when they were scheduled).

    Nothing here reads a clock or draws a number, so two runs of one input are equal.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handled = 0
        self._queue: list[_Event] = []
        self._reports: list[_Event] = []
        self._sequence = 0
        self.after_each: Action | None = None  # called after every event; tests hang their invariants here

    def at(self, at_s: float, action: Action, priority: int = ARRIVAL) -> None:
        """Schedule `action`. Raises SimulationError for a time that has passed, is too late or is not a number."""
        if not self.now_s <= at_s <= LATEST_S:
            raise SimulationError(f"at_s must be >= now ({self.now_s}) and <= {LATEST_S:g}, in simulated seconds, got {at_s}")
        self._sequence += 1
        queue = self._reports if priority == REPORT else self._queue
        heapq.heappush(queue, (at_s, priority, self._sequence, action))

    def after(self, delay_s: float, action: Action, priority: int = ARRIVAL) -> None:
        """Schedule `action` `delay_s` from now."""
        self.at(self.now_s + delay_s, action, priority)

    def until_next_report_s(self, period_s: float) -> float:
        """One period; in days of silence as many whole ones as leave its last minute, since reports only repeat there."""
        quiet_s = self._queue[0][0] - self.now_s - _AWAKE_S if self._queue else 0.0
        return period_s * max(1, int(quiet_s / period_s))

    def run(self, until_s: float = inf) -> None:
        """Handle events up to and including `until_s`, each at its own time."""
        while (queue := self._next_queue()) and queue[0][0] <= until_s:
            self.now_s, _, _, action = heapq.heappop(queue)
            action()
            self.handled += 1
            if self.after_each is not None:
                self.after_each()

    def _next_queue(self) -> list[_Event]:
        """The one whose first event comes first."""
        if self._queue and self._reports:
            return self._queue if self._queue[0] < self._reports[0] else self._reports
        return self._queue or self._reports
