"""Which routers listen to a node, by what an XPUB socket hears of its readers."""

from vllm_kairos.wire.routers import router_of

MAX_ROUTERS = 64
_SUBSCRIBED, _LEFT = 1, 0


class Subscribers:
    """The routers that made themselves known and are still connected.

    The socket tells only of a topic's first reader and of its last one's going, however it goes. Whoever reaches
    the port can make himself known; he cannot make more of them known than there is room for.
    """

    def __init__(self) -> None:
        self.routers: frozenset[str] = frozenset()

    def heard(self, frame: bytes) -> None:
        """Take what the socket received; what is no router's subscription changes nothing."""
        router = router_of(frame[1:])
        if router is None:
            return
        if frame[0] == _LEFT:
            self.routers -= {router}
        elif frame[0] == _SUBSCRIBED and len(self.routers) < MAX_ROUTERS:
            self.routers |= {router}
