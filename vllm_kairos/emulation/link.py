"""One direction of one node's network card."""

from math import inf


class LinkLine:
    """Transfers go one after the other, each at the whole bandwidth; a later one waits for those before it."""

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        self._bandwidth_bytes_per_s = bandwidth_bytes_per_s
        self._free_s = -inf

    def carry(self, size_bytes: float, now_s: float) -> float:
        """Add a transfer, and return the seconds from `now_s` until its last byte is through."""
        self._free_s = max(now_s, self._free_s) + size_bytes / self._bandwidth_bytes_per_s
        return self._free_s - now_s
