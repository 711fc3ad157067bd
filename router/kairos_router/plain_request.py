"""Tells plain requests for the endpoints that may take two legs from all others, by the bytes of their head. Pure.

A plain request says its body's length, sends the body as it is, wants nothing of HTTP but an answer, and says
nothing twice. Most clients send no others; those that do are served by aiohttp, whose judgement of every
unusual or malformed head holds.
"""

from dataclasses import dataclass

import httptools

from kairos_router.payload import Endpoint

MAX_HEAD_BYTES = 8190
"""aiohttp takes longer heads, as long as none of their lines is longer."""

_PATHS = {f"POST {endpoint} HTTP/1.1".encode(): str(endpoint) for endpoint in Endpoint}
_NOT_PLAIN = frozenset({"transfer-encoding", "content-encoding", "expect", "upgrade", "origin"})
_MAX_LENGTH_DIGITS = 15


@dataclass(frozen=True, slots=True)
class PlainHead:
    """What to answer; `headers` has its names in lower case. The body is what follows `head_bytes` bytes."""

    path: str
    headers: dict[str, str]
    head_bytes: int
    body_bytes: int


class _Fields:
    """What httptools calls while it parses a head."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.count = 0
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        self.headers[name.decode("latin-1").lower()] = value.decode("utf-8", "surrogateescape").strip(" \t")

    def on_headers_complete(self) -> None:
        self.complete = True


def read_head(data: bytes) -> PlainHead | None:
    """Read the head that `data` begins with. None: it is not plain, or not all there."""
    path = _PATHS.get(data[: data.find(b"\r\n")])
    end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES) + 4
    if path is None or end < 4:
        return None
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(data[:end])
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return None
    length = fields.headers.get("content-length", "")
    if not fields.complete or not _is_plain(fields) or not length.isdecimal() or len(length) > _MAX_LENGTH_DIGITS:
        return None
    return PlainHead(path, fields.headers, end, int(length))


def _is_plain(fields: _Fields) -> bool:
    headers = fields.headers
    stays = headers.get("connection", "keep-alive").lower() == "keep-alive"
    return stays and len(headers) == fields.count and _NOT_PLAIN.isdisjoint(headers)
