"""Counts KV pulls: those that ran, with their times, and those that deflection made needless."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

_KEPT_PULLS = 64

FinishedPull = tuple[str, int, int | None, float]
"""Peer engine id, tokens, bytes where the connector measured them, seconds."""


class TransferLedger:
    """What one connector pulled and skipped; lives in the scheduler's process."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._pulls: dict[str, tuple[str, int, float]] = {}  # in flight: an entry goes with its request
        self._finished: deque[FinishedPull] = deque(maxlen=_KEPT_PULLS)
        self.skipped_transfers = 0
        self.skipped_tokens = 0

    def skip(self, tokens: int) -> None:
        """A deflected request computes `tokens` that would have been pulled."""
        self.skipped_transfers += 1
        self.skipped_tokens += tokens

    def start(self, request_id: str, peer: str, tokens: int) -> None:
        """A pull of `tokens` from engine `peer` begins."""
        self._pulls[request_id] = (peer, tokens, self._clock())

    def drop(self, request_id: str) -> None:
        """The request ended before its pull did."""
        self._pulls.pop(request_id, None)

    def finish(self, request_ids: Iterable[str], stats: Any = None) -> None:
        """These pulls are done; `stats` are the connector's own lists of bytes and seconds, when it has them.

        One pull with one measurement takes it; otherwise the time since the start counts, which
        includes the wait for a step boundary, and the bytes are those of the tokens.
        """
        done = [pull for request_id in request_ids if (pull := self._pulls.pop(request_id, None)) is not None]
        measured = _measured(stats)
        for index, (peer, tokens, started_s) in enumerate(done):
            if len(measured) == len(done):
                moved_bytes, seconds = measured[index]
                self._finished.append((peer, tokens, int(moved_bytes), float(seconds)))
            else:
                self._finished.append((peer, tokens, None, self._clock() - started_s))

    def take_finished(self) -> list[FinishedPull]:
        """The pulls finished since the last call."""
        finished = list(self._finished)
        self._finished.clear()
        return finished


def _measured(stats: Any) -> list[tuple[float, float]]:
    data = getattr(stats, "data", None)
    if not isinstance(data, dict):
        return []
    return list(zip(data.get("bytes_transferred", ()), data.get("transfer_duration", ()), strict=False))
