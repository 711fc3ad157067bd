"""The bodies of requests, read as the servers that get them read them."""

import json
from typing import Any

import msgspec


def read_as_servers_do(raw: bytes) -> Any:
    """Decode what Python's json takes: NaN, 1e400, lone surrogates, a byte order mark and UTF-16 too.

    None: not JSON. Raises RecursionError where it is nested too deep.
    """
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        pass
    try:
        return json.loads(raw)
    except ValueError:
        return None
