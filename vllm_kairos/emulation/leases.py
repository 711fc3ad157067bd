"""The sending side of KV transfers: which requests' blocks are kept, and until when."""

from collections.abc import Iterable
from threading import Lock


class LeaseTable:
    """Blocks of finished prompts, kept until they were pulled or their lease ends.

    Told by the engine's thread, asked by the transfer service's. A pull may come before the engine
    sets the lease (with async scheduling it lags), so a request counts from its first batch on.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._tracked: set[str] = set()
        self._until_s: dict[str, float] = {}
        self._pulled: set[str] = set()

    def track(self, request_ids: Iterable[str]) -> None:
        """These requests compute blocks that others will pull."""
        with self._lock:
            self._tracked.update(request_ids)

    def forget(self, request_ids: Iterable[str]) -> None:
        """These will not be pulled after all."""
        with self._lock:
            self._tracked.difference_update(request_ids)

    def lease(self, request_id: str, until_s: float) -> None:
        """Keep the blocks until then, unless they were pulled already."""
        with self._lock:
            if request_id in self._tracked:
                self._until_s[request_id] = until_s

    def extend(self, request_ids: Iterable[str], until_s: float) -> None:
        """A reader says that it still wants these."""
        with self._lock:
            for request_id in request_ids:
                if request_id in self._until_s:
                    self._until_s[request_id] = max(until_s, self._until_s[request_id])

    def holds(self, request_id: str) -> bool:
        """Whether the blocks are there to be read."""
        with self._lock:
            return request_id in self._tracked

    def release(self, request_id: str) -> bool:
        """The reader is done; False when the blocks were gone by then."""
        with self._lock:
            if request_id not in self._tracked:
                return False
            self._tracked.remove(request_id)
            self._until_s.pop(request_id, None)
            self._pulled.add(request_id)
            return True

    def take_ended(self, now_s: float) -> tuple[set[str], set[str]]:
        """Requests pulled and requests expired since the last call; their blocks are free."""
        with self._lock:
            expired = {request_id for request_id, until_s in self._until_s.items() if now_s >= until_s}
            for request_id in expired:
                self._tracked.remove(request_id)
                del self._until_s[request_id]
            pulled, self._pulled = self._pulled, set()
            return pulled, expired
