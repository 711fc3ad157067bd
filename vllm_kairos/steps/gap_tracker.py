"""Which request got its last token when, so that each new token ends one gap that is put down to one cause."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.steps.attribution import Reading, gap_cause


class Mark(NamedTuple):
    """A moment at which tokens came out."""

    at_s: float
    clock: Reading


class Gap(NamedTuple):
    """`requests` that waited `gap_s` for a token, for the same cause."""

    cause: Cause
    requests: int
    gap_s: float


class GapTracker:
    """Requests that got a token in the last step share one mark, so a step in which all go on touches none of them.

    A request's first token here ends no gap. Tokens that come out together (accepted drafts) end one gap.
    Steps are numbered in the order in which they were scheduled.
    """

    def __init__(self, left_by_client: Callable[[str], bool] = lambda request_id: False) -> None:
        self._left_by_client = left_by_client
        self._members: set[str] = set()  # got their last token at self._mark
        self._mark = Mark(0.0, (0.0, 0.0, 0.0, 0.0))
        self._paused: dict[str, Mark] = {}  # got it earlier
        self._preempted: dict[str, int] = {}  # number of the step that was being scheduled

    def __len__(self) -> int:
        """Requests about which anything is remembered."""
        return len(self._members | self._paused.keys() | self._preempted.keys())

    @property
    def members(self) -> int:
        """Requests that got a token in the last step and have not ended or been preempted since."""
        return len(self._members)

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

    def all_served(self, step: int, now: Mark) -> list[Gap]:
        """The same as `served` with all `members`, and nobody else."""
        if self._preempted or not self._members:
            return self.served(set(self._members), step, now)
        mark, self._mark = self._mark, now
        return [Gap(gap_cause(mark.clock, now.clock), len(self._members), now.at_s - mark.at_s)]

    def served(self, request_ids: set[str], step: int, now: Mark) -> list[Gap]:
        """Each of `request_ids` got tokens of `step` at `now`; returns the gaps that end. Takes the set over."""
        members, mark = self._members, self._mark
        staying, gaps = len(members), []
        if request_ids != members:
            joined = request_ids - members
            staying = len(request_ids) - len(joined)
            gaps = [gap for request_id in joined if (gap := self._rejoin(request_id, step, now)) is not None]
            for request_id in members - request_ids if staying < len(members) else ():
                if not self._left_by_client(request_id):
                    self._paused[request_id] = mark
        if staying:
            gaps.append(Gap(gap_cause(mark.clock, now.clock), staying, now.at_s - mark.at_s))
        self._members, self._mark = request_ids, now
        for request_id in self._preempted:
            self._pause(request_id)
        return gaps

    def _pause(self, request_id: str) -> None:
        if request_id in self._members:
            self._members.remove(request_id)
            self._paused[request_id] = self._mark

    def _rejoin(self, request_id: str, step: int, now: Mark) -> Gap | None:
        """The gap of a request that got no token in the last step; None for its first token."""
        preempted = self._preempted.get(request_id, step + 1) <= step
        if preempted:
            del self._preempted[request_id]
        mark = self._paused.pop(request_id, None)
        if mark is None:
            return None
        cause = Cause.PREEMPTED if preempted else gap_cause(mark.clock, now.clock)
        return Gap(cause, 1, now.at_s - mark.at_s)
