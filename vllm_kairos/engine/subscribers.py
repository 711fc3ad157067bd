"""Which routers listen to a node, by what an XPUB socket hears of its readers."""

from itertools import islice

from vllm_kairos.wire.routers import router_of

MAX_ROUTERS = 64
MAX_CONNECTED = 1024
_SUBSCRIBED, _LEFT = 1, 0


class Subscribers:
    """The routers that made themselves known and are still connected: the first `MAX_ROUTERS`, in order of arrival.

    Later ones wait for one of them to leave. The socket tells only of a topic's first reader and of its last one's
    going, however it goes: who is not remembered when he comes is never heard of again. Whoever reaches the port can
    make himself known; he cannot make more of them known, or remembered, than there is room for.
    """

    def __init__(self) -> None:
        self.routers: frozenset[str] = frozenset()
        self._connected: dict[str, None] = {}  # in order of arrival

    def heard(self, frame: bytes) -> None:
        """Take what the socket received; what is no router's subscription changes nothing."""
        router = router_of(frame[1:])
        if router is None:
            return
        if frame[0] == _LEFT:
            self._connected.pop(router, None)
        elif frame[0] == _SUBSCRIBED and len(self._connected) < MAX_CONNECTED:
            self._connected[router] = None
        self.routers = frozenset(islice(self._connected, MAX_ROUTERS))
