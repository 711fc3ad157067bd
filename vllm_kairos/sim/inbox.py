"""What reaches an engine while the step after the one under way is composed already."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import NamedTuple

from vllm_kairos.sim.job import Job
from vllm_kairos.sim.leap import Leap

JOB_LAG, LOAD_LAG, KV_LAG = 1, 2, 3
"""Steps after the one under way that are composed without a new job, the end of a load, and that of any other transfer."""


class _Item(NamedTuple):
    at_s: float
    lag: int
    act: Callable[[], None]
    job: Job | None


class Inbox:
    """Keeps what arrives from the steps that are composed without it.

    With async scheduling vLLM composes step N+1 as step N begins, from what had arrived by then: a job that arrives
    during step N is in step N+2 at the earliest. Ends of KV transfers are looked for as a step is handed to the
    workers, and known with that step's output. So one that comes during step N is found as step N+2 is handed
    over, at the end of step N; it is known at the end of step N+2, and counts in the step composed then, N+4.
    The simulated engine composes a step only when it begins. So its loads begin one step later than vLLM's, which
    starts them as the step is handed over, and their ends count one step sooner: in the same step.
    """

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._begins_s = deque([-inf] * KV_LAG, maxlen=KV_LAG)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Those that no step could be composed with yet."""
        return tuple(item.job for item in self._items if item.job is not None)

    def add(self, act: Callable[[], None], at_s: float, lag: int, job: Job | None = None) -> None:
        """Keep what is to be done about something that arrived at `at_s`; `job`, if that was a job."""
        self._items.append(_Item(at_s, lag, act, job))

    def steps_ended(self, leap: Leap) -> None:
        """Note when the last steps of `leap` began."""
        self._begins_s.extend(leap.end_s(step) for step in range(max(0, leap.steps - KV_LAG), leap.steps))

    def step_passed(self, now_s: float) -> None:
        """Note a step without tokens, which takes no time."""
        self._begins_s.append(now_s)

    def take_seen(self) -> None:
        """Act on what the step that follows those noted is composed with."""
        self._take(lambda item: item.at_s <= self._begins_s[-item.lag])

    def take_all(self) -> None:
        """Act on everything."""
        self._take(lambda item: True)

    def _take(self, seen: Callable[[_Item], bool]) -> None:
        if self._items:
            taken = [item for item in self._items if seen(item)]
            self._items = [item for item in self._items if not seen(item)]
            for item in taken:
                item.act()
