"""Session affinity, pure: what a request has in common with others of its session, and which node that means.

Rendezvous hashing: each node has its own weight for a key and the heaviest wins, so a node that leaves
moves only the keys it held, and one that joins takes only those it wins. Every router agrees, in any order
of nodes, without a table.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

HEADERS = ("x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id")
"""Searched first, in this order."""
FIELDS = (("session_params", "session_id"), ("user",), ("session_id",), ("user_id",), ("conversation_id",))
"""Paths in the body, searched next."""


def affinity_key(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """The first key that a request carries, "" when it has none; `headers` holds its names in lower case."""
    for name in HEADERS:
        given = headers.get(name, "").strip()
        if given:
            return given
    return next((key for key in (_text(_at(body, path)) for path in FIELDS) if key), "")


def heaviest(key: str, node_ids: Iterable[str]) -> str | None:
    """The node that `key` belongs to, None when there is no node."""
    return max(node_ids, key=lambda node_id: (_weight(key, node_id), node_id), default=None)


def _weight(key: str, node_id: str) -> bytes:
    return blake2b(node_id.encode(), key=_digest(key), digest_size=8).digest()


def _digest(key: str) -> bytes:
    return blake2b(key.encode(errors="surrogatepass"), digest_size=16).digest()


def _at(body: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) else ""
