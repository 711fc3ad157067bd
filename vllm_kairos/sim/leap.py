"""A run of engine steps that carry decodes alone, taken as one event."""

from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Leap:
    """`steps` steps from `start_s` on; step j takes `first_s + j * slope_s` seconds."""

    start_s: float
    first_s: float
    slope_s: float
    steps: int

    def end_s(self, steps: int) -> float:
        """When the first `steps` steps are done."""
        return self.start_s + steps * self.first_s + self.slope_s * (steps * (steps - 1) / 2)

    def steps_by(self, now_s: float) -> int:
        """Steps that are done at `now_s`."""
        if now_s >= self.end_s(self.steps):
            return self.steps
        steps = min(self.steps, max(0, int(self._position(now_s - self.start_s))))
        while steps < self.steps and self.end_s(steps + 1) <= now_s:
            steps += 1
        while steps > 0 and self.end_s(steps) > now_s:
            steps -= 1
        return steps

    def steps_until(self, now_s: float, more: int = 0) -> int:
        """Steps up to the end of the one under way at `now_s`, and `more`; one that ends right then is the last.

        With `more`, the one before the first counts as under way at the start.
        """
        if more and now_s <= self.start_s:
            return min(more, self.steps)
        done = self.steps_by(now_s)
        under_way = done if done and self.end_s(done) == now_s else done + 1
        return min(under_way + more, self.steps)

    def _position(self, elapsed_s: float) -> float:
        """Solve for how many steps fit into `elapsed_s`."""
        if self.slope_s <= 0:
            return elapsed_s / self.first_s if self.first_s > 0 else self.steps
        half = self.first_s - self.slope_s / 2
        return (sqrt(half * half + 2 * self.slope_s * elapsed_s) - half) / self.slope_s
