"""The topic by which a router that spends leases makes itself known to a node: it subscribes to its own name."""

import re

_TOPIC_PREFIX = b"kairos.router."
MAX_ID_CHARS = 64
_ID = re.compile(rb"[0-9A-Za-z_.-]{1,%d}" % MAX_ID_CHARS)


def router_topic(router_id: str) -> bytes:
    """What router `router_id` subscribes to, beside the state itself."""
    return _TOPIC_PREFIX + router_id.encode()


def router_of(topic: bytes) -> str | None:
    """The router that a subscription to `topic` makes known; None: it names none."""
    name = topic.removeprefix(_TOPIC_PREFIX)
    return name.decode() if topic.startswith(_TOPIC_PREFIX) and _ID.fullmatch(name) else None
