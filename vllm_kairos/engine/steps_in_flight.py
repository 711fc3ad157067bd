"""Steps between schedule() and update_from_output(), with what was noted of them when they were scheduled."""

from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

_Note = TypeVar("_Note")

_MOST = 64


class StepsInFlight(Generic[_Note]):
    """Notes by the scheduler's output object, in the order of the steps; under async scheduling there are several."""

    def __init__(self) -> None:
        self._steps: deque[tuple[Any, _Note]] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, output: Any, note: _Note) -> None:
        """The step of `output` leaves for the workers."""
        if len(self._steps) == _MOST:
            self._steps.popleft()  # its output never came
        self._steps.append((output, note))

    def notes(self) -> Iterator[_Note]:
        """The notes of all of them, in the order of the steps."""
        return (note for _, note in self._steps)

    def take(self, output: Any) -> _Note | None:
        """The note of `output`, which was taken in, and forget those before it, whose outputs never came; None without one."""
        steps = self._steps
        if steps and steps[0][0] is output:
            return steps.popleft()[1]
        if not any(each is output for each, _ in steps):
            return None
        while True:
            each, note = steps.popleft()
            if each is output:
                return note
