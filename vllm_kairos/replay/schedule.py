"""When each request is due: by its trace's clock, or after the one it waits for. Pure: nothing here waits."""

from collections import defaultdict
from collections.abc import Sequence
from heapq import heappop, heappush
from math import sqrt

from vllm_kairos.workload.request import TraceRequest


def ramped_s(arrival_s: float, ramp_s: float) -> float:
    """When a request of the trace's `arrival_s` is due, with the rate rising evenly from 0 over the first `ramp_s`."""
    if arrival_s < ramp_s / 2:
        return sqrt(2 * ramp_s * arrival_s)
    return arrival_s + ramp_s / 2


class Schedule:
    """Indices of requests by the moment they are due; a successor joins when its predecessor has ended."""

    def __init__(self, requests: Sequence[TraceRequest], *, ramp_s: float = 0.0) -> None:
        self._requests = requests
        self._due_s = [ramped_s(request.arrival_s, ramp_s) for request in requests]
        self._heap: list[tuple[float, int]] = []
        self._successors: defaultdict[str, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            if request.after:
                self._successors[request.after].append(index)
            else:
                heappush(self._heap, (self._due_s[index], index))

    def ended(self, index: int, at_s: float) -> None:
        """Tell that a request has ended, whole or not: those that waited for it get their moments."""
        for successor in self._successors.pop(self._requests[index].request_id, []):
            due_s = max(self._due_s[successor], at_s + self._requests[successor].think_s)
            heappush(self._heap, (due_s, successor))

    @property
    def next(self) -> tuple[float, int] | None:
        """The earliest request that nobody took, with the moment it is due."""
        return self._heap[0] if self._heap else None

    def take(self) -> tuple[float, int]:
        """Remove and return `next`."""
        return heappop(self._heap)
