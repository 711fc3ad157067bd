"""By when each running decode must have its next token."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

FORGIVEN_TOKENS = 8
"""A decode that lags more tokens than this behind its TPOT objective starts its count anew: prefill would wait too long."""
_LONGEST_TPOT_S = 1e6
"""A longer objective is this one: sums of more could not be told apart, and lags behind it never be made up."""


class Objective(NamedTuple):
    """What a request may wait for tokens, in seconds; None: no such objective. With both, the earlier deadline counts.

    `tbt_s`: each token at most so long after the one before. `tpot_s`: token 1 + n by n times as long after the
    first, so that time saved on some tokens may be spent on others.
    """

    tbt_s: float | None = None
    tpot_s: float | None = None


@dataclass(slots=True, eq=False)
class Moment:
    """When a step's tokens come out: predicted while it is in flight, then measured."""

    at_s: float
    first_of: tuple[str, ...] = field(default=(), kw_only=True)
    """Requests that get their first token then, and have a TPOT objective."""


class _Tempo:
    """Requests of one TPOT objective, by their deadlines; a step in which all get a token touches none of them.

    A deadline is `key + steps * tpot_s`, and every step adds to all of them at once.
    """

    def __init__(self, tpot_s: float) -> None:
        self._tpot_s = min(tpot_s, _LONGEST_TPOT_S)
        self.steps = 0
        """In each of which everybody got a token."""
        self._keys: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []  # with entries of requests that have left or moved

    def start(self, request_id: str, first_s: float) -> None:
        """`request_id` gets its first token in the last step, at `first_s`."""
        self._set(request_id, first_s - (self.steps - 1) * self._tpot_s)

    def shift(self, request_id: str, by_s: float) -> None:
        """Move a deadline."""
        if request_id in self._keys:
            self._set(request_id, self._keys[request_id] + by_s)

    def drop(self, request_id: str) -> bool:
        """`request_id` has ended; True when nobody is left."""
        self._keys.pop(request_id, None)
        return not self._keys

    def earliest_s(self, begin_s: float) -> float:
        """The earliest deadline of a step that begins at `begin_s`; inf without requests."""
        heap, keys, offset_s = self._heap, self._keys, self.steps * self._tpot_s
        while heap:
            key_s, request_id = heap[0]
            if keys.get(request_id) != key_s:
                heappop(heap)
            elif key_s + offset_s >= begin_s - FORGIVEN_TOKENS * self._tpot_s:
                return key_s + offset_s
            else:
                self._set(request_id, begin_s + self._tpot_s - offset_s)
        return inf

    def _set(self, request_id: str, key_s: float) -> None:
        self._keys[request_id] = key_s
        heappush(self._heap, (key_s, request_id))
        if len(self._heap) > 64 + 2 * len(self._keys):
            self._heap = sorted((key_s, request_id) for request_id, key_s in self._keys.items())


class Deadlines:
    """The deadlines of an engine's decodes, kept so that a step in which all go on costs the same however many they are.

    Steps are told when they are scheduled, with the moment at which their tokens are expected; `settle` says
    when they came. A request's first token has no deadline here.
    """

    def __init__(self) -> None:
        self._members: dict[str, Objective] = {}  # get a token at self._moment
        self._moment = Moment(0.0)
        self._paused: dict[str, tuple[Moment, Objective]] = {}  # run, and got their last token earlier
        self._tbt: dict[float, int] = {}  # members by TBT objective
        self._tightest_s = inf  # of these objectives
        self._tempos: dict[float, _Tempo] = {}

    def __len__(self) -> int:
        return len(self._members) + len(self._paused)

    def go_on(self, joined: Mapping[str, Objective], served: int, moment: Moment, *, steps: int = 1) -> bool:
        """The next step serves all who got a token in the last one, and `joined`.

        Or the next `steps` do, of which `moment` is the last, in which `joined` get their first token. False, and
        nothing done, when these are not as many as `served` or somebody is left who got none in the last step.
        """
        members = self._members
        if self._paused or len(members) + len(joined) != served:
            return False
        if joined and not joined.keys().isdisjoint(members.keys()):  # of two views, the shorter is gone through
            return False
        self._moment = moment
        for tempo in self._tempos.values():
            tempo.steps += steps
        for request_id, objective in joined.items():
            self._join(request_id, objective)
        return True

    def serve(
        self,
        request_ids: Iterable[str],
        moment: Moment,
        objective_of: Callable[[str], Objective],
        still_decodes: Callable[[str], bool],
    ) -> None:
        """The next step serves exactly `request_ids`; who of the others no longer decodes is forgotten."""
        served = set(request_ids)
        left_out = [request_id for request_id in self._members if request_id not in served]
        for request_id in left_out:
            self._paused[request_id] = (self._moment, self._leave(request_id))
        self._moment = moment
        for tempo in self._tempos.values():
            tempo.steps += 1
        for request_id in served - self._members.keys():
            if (paused := self._paused.pop(request_id, None)) is not None:
                self._count(request_id, paused[1])
            else:
                self._join(request_id, objective_of(request_id))
        for request_id in list(self._paused):
            tpot_s = self._paused[request_id][1].tpot_s
            if not still_decodes(request_id):
                self.forget(request_id)
            elif tpot_s is not None:
                self._tempos[tpot_s].shift(request_id, -tpot_s)  # it gets no token in this step

    def forget(self, request_id: str) -> None:
        """`request_id` has ended or lost its place; its next token, if there is one, counts as a first."""
        if request_id in self._members:
            self._end(request_id, self._leave(request_id))
        elif (paused := self._paused.pop(request_id, None)) is not None:
            self._end(request_id, paused[1])

    def settle(self, moment: Moment, at_s: float) -> None:
        """The tokens expected at `moment` came, or will come, at `at_s`."""
        late_s, moment.at_s = at_s - moment.at_s, at_s
        if not late_s:
            return
        for request_id in moment.first_of:
            if (objective := self._objective(request_id)) is not None and objective.tpot_s is not None:
                self._tempos[objective.tpot_s].shift(request_id, late_s)

    def earliest(self, begin_s: float) -> tuple[float, float]:
        """The earliest deadline of a step that begins at `begin_s`, which serves them all; inf without decodes.

        And the TPOT objective that sets it, which keeps time saved; 0: a TBT objective sets it.
        """
        earliest_s, of_tpot_s = self._moment.at_s + self._tightest_s, 0.0
        for moment, objective in self._paused.values():
            if objective.tbt_s is not None:
                earliest_s = min(earliest_s, moment.at_s + objective.tbt_s)
        for tpot_s, tempo in self._tempos.items():
            due_s = tempo.earliest_s(begin_s)
            if due_s < earliest_s:
                earliest_s, of_tpot_s = due_s, tpot_s
        return earliest_s, of_tpot_s

    def earliest_s(self, begin_s: float) -> float:
        """When that is."""
        return self.earliest(begin_s)[0]

    def _join(self, request_id: str, objective: Objective) -> None:
        """A first token, at the current moment."""
        self._count(request_id, objective)
        if objective.tpot_s is not None:
            self._moment.first_of += (request_id,)
            self._tempos.setdefault(objective.tpot_s, _Tempo(objective.tpot_s)).start(request_id, self._moment.at_s)

    def _count(self, request_id: str, objective: Objective) -> None:
        self._members[request_id] = objective
        tbt_s = objective.tbt_s
        if tbt_s is not None:
            self._tbt[tbt_s] = self._tbt.get(tbt_s, 0) + 1
            if tbt_s < self._tightest_s:
                self._tightest_s = tbt_s

    def _leave(self, request_id: str) -> Objective:
        objective = self._members.pop(request_id)
        if objective.tbt_s is not None:
            self._tbt[objective.tbt_s] -= 1
            if not self._tbt[objective.tbt_s]:
                del self._tbt[objective.tbt_s]
                self._tightest_s = min(self._tbt, default=inf)
        return objective

    def _objective(self, request_id: str) -> Objective | None:
        paused = self._paused.get(request_id)
        return paused[1] if paused is not None else self._members.get(request_id)

    def _end(self, request_id: str, objective: Objective) -> None:
        if objective.tpot_s is not None and self._tempos[objective.tpot_s].drop(request_id):
            del self._tempos[objective.tpot_s]
