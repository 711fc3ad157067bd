"""Where one request stands in its chunk schedule; hangs on the request object and dies with it."""

from collections.abc import Sequence


class ScheduleState:
    """A chunk schedule and how far it has been used.

    Entries are total batch tokens per step (chi), the last one repeats. The position is the number
    of chunks that began below the tokens computed so far, so it advances when a chunk is scheduled
    and rolls back by itself when preemption takes computed tokens away.
    """

    __slots__ = ("__weakref__", "_starts", "ended", "entries", "planned", "skip_counted", "waited_steps")

    def __init__(self, entries: Sequence[int], *, planned: bool) -> None:
        self.entries = tuple(entries)
        self.planned = planned
        self.waited_steps = 0
        self.ended = False  # whether the whole prompt was scheduled once
        self.skip_counted = False  # whether the KV transfer it saves was counted
        self._starts: list[int] = []

    def position(self, computed_tokens: int) -> int:
        """Index of the entry for a chunk that begins at `computed_tokens`."""
        starts = self._starts
        while starts and starts[-1] >= computed_tokens:
            starts.pop()
        return len(starts)

    def chi(self, computed_tokens: int) -> int:
        """Total batch tokens of the step whose chunk begins at `computed_tokens`."""
        entries = self.entries
        return entries[min(self.position(computed_tokens), len(entries) - 1)]

    def record_chunk(self, computed_tokens: int) -> None:
        """Note that a chunk beginning at `computed_tokens` goes into this step."""
        if self.position(computed_tokens) < len(self.entries) - 1:
            self._starts.append(computed_tokens)
