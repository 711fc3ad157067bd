"""The event kernel: a clock of its own and a heap in total order."""

import heapq
from collections.abc import Callable
from math import inf

from vllm_kairos.errors import SimulationError

Action = Callable[[], None]

ARRIVAL, STEP_END, REPORT = range(3)
"""Priorities of events at one instant: what arrives is seen by the step that begins then, and reports come last."""


class Kernel:
    """Runs actions in the order of (time, priority, when they were scheduled).

    Nothing here reads a clock or draws a number, so two runs of one input are equal.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handled = 0
        self._queue: list[tuple[float, int, int, Action]] = []
        self._sequence = 0
        self.after_each: Action | None = None  # called after every event; tests hang their invariants here

    def at(self, at_s: float, action: Action, priority: int = ARRIVAL) -> None:
        """Schedule `action`. Raises SimulationError for a time that has passed or is not a number."""
        if not at_s >= self.now_s:
            raise SimulationError(f"at_s must be >= now ({self.now_s}), got {at_s}")
        self._sequence += 1
        heapq.heappush(self._queue, (at_s, priority, self._sequence, action))

    def after(self, delay_s: float, action: Action, priority: int = ARRIVAL) -> None:
        """Schedule `action` `delay_s` from now."""
        self.at(self.now_s + delay_s, action, priority)

    def run(self, until_s: float = inf) -> None:
        """Handle events up to and including `until_s`, each at its own time."""
        queue = self._queue
        while queue and queue[0][0] <= until_s:
            self.now_s, _, _, action = heapq.heappop(queue)
            action()
            self.handled += 1
            if self.after_each is not None:
                self.after_each()
