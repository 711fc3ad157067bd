"""Which request got its last token when, so that each new token ends one gap that is put down to one cause."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.steps.attribution import Reading, gap_cause


class Mark(msgspec.Struct):
    """A moment at which tokens came out. `clock` is read when its step is worked out, after those before it."""

    at_s: float
    clock: Reading = (0.0, 0.0, 0.0, 0.0)


class Wait(msgspec.Struct, frozen=True):
    """`requests` that got their last token at `since` and got one again."""

    since: Mark
    requests: int
    preempted: bool


class Gap(NamedTuple):
    """`requests` that waited `gap_s` for a token, for the same cause."""

    cause: Cause
    requests: int
    gap_s: float


def gap_of(wait: Wait, now: Mark) -> Gap:
    """What `wait`, which ended `now`, is put down to; both clocks must have been read."""
    cause = Cause.PREEMPTED if wait.preempted else gap_cause(wait.since.clock, now.clock)
    return Gap(cause, wait.requests, now.at_s - wait.since.at_s)


class GapTracker:
    """Requests that got a token in the last step share one mark, so a step in which they go on touches none of them.

    A request's first token here ends no gap. Tokens that come out together (accepted drafts) end one gap.
    Steps are numbered in the order in which they were scheduled.
    """

    def __init__(self, left_by_client: Callable[[str], bool] = lambda request_id: False) -> None:
        self._left_by_client = left_by_client
        self._members: set[str] = set()  # got their last token at self._mark
        self._mark = Mark(0.0)
        self._paused: dict[str, Mark] = {}  # got it earlier
        self._preempted: dict[str, int] = {}  # number of the step that was being scheduled

    def __len__(self) -> int:
        """Requests about which anything is remembered."""
        return len(self._members | self._paused.keys() | self._preempted.keys())

    def preempt(self, request_id: str, step: int) -> None:
        """`request_id` lost its place when `step` was scheduled; a token of an older step may still come out for it."""
        self._preempted[request_id] = step
        self._pause(request_id)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These requests have ended."""
        for request_id in request_ids:
            self._members.discard(request_id)
            self._paused.pop(request_id, None)
            self._preempted.pop(request_id, None)

    def went_on(self, entered: Iterable[str], served: int, step: int, now: Mark) -> list[Wait] | None:
        """The same as `served` with all who got a token in the last step and `entered`, at the cost of `entered` alone.

        None, and nothing done, where these are not as many as `served`, or a preempted request may yet get
        a token of this step.
        """
        members = self._members
        if self._preempted and max(self._preempted.values()) > step:
            return None
        joined = [request_id for request_id in entered if request_id not in members] if entered else []
        staying = len(members)
        if staying + len(joined) != served:
            return None
        waits = [Wait(self._mark, staying, False)] if staying else []
        if joined:
            waits += self._rejoined(joined, step)
            members.update(joined)
        self._mark = now
        return waits

    def served(self, request_ids: set[str], step: int, now: Mark) -> list[Wait]:
        """Each of `request_ids` got tokens of `step` at `now`; returns the waits that end. Takes the set over."""
        members, mark = self._members, self._mark
        joined = request_ids - members
        staying = len(request_ids) - len(joined)
        waits = self._rejoined(joined, step)
        for request_id in members - request_ids if staying < len(members) else ():
            if not self._left_by_client(request_id):
                self._paused[request_id] = mark
        if staying:
            waits.append(Wait(mark, staying, False))
        self._members, self._mark = request_ids, now
        for request_id in self._preempted:
            self._pause(request_id)
        return waits

    def _pause(self, request_id: str) -> None:
        if request_id in self._members:
            self._members.remove(request_id)
            self._paused[request_id] = self._mark

    def _rejoined(self, request_ids: Iterable[str], step: int) -> list[Wait]:
        """The waits of requests that got no token in the last step; none for first tokens."""
        waits = []
        for request_id in request_ids:
            preempted = self._preempted.get(request_id, step + 1) <= step
            if preempted:
                del self._preempted[request_id]
            mark = self._paused.pop(request_id, None)
            if mark is not None:
                waits.append(Wait(mark, 1, preempted))
        return waits
