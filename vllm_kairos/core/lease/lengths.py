"""How long outputs are, learned from those that ended."""

from bisect import bisect_right, insort
from collections import deque
from itertools import accumulate

_START_TOKENS = 256  # before anything has ended


class OutputLengths:
    """The mean of the last `window` lengths, of those that are longer than what a request has already."""

    def __init__(self, *, window: int = 256, start_tokens: int = _START_TOKENS) -> None:
        self._recent: deque[int] = deque()
        self._window, self._start_tokens = window, start_tokens
        self._sorted: list[int] = []
        self._sums: list[int] = []  # of the first n sorted ones; empty: to be worked out

    def ended(self, output_tokens: int) -> None:
        """A request ended by itself or by its limit after `output_tokens`."""
        if len(self._recent) == self._window:
            self._sorted.remove(self._recent.popleft())
        self._recent.append(output_tokens)
        insort(self._sorted, output_tokens)
        self._sums = []

    def expected(self, most_tokens: int, produced: int = 0) -> int:
        """Expected length, in all, of an output that has `produced` tokens and ends at `most_tokens`, if not before.

        Past all known lengths it is expected to become twice as long as it is.
        """
        longer = len(self._sorted) - bisect_right(self._sorted, produced)
        if longer:
            self._sums = self._sums or list(accumulate(self._sorted, initial=0))
            tokens = -(-(self._sums[-1] - self._sums[-1 - longer]) // longer)
        else:
            tokens = max(2 * produced, 0 if self._sorted else self._start_tokens)
        return max(min(max(tokens, produced + 1), most_tokens), 0)
