"""A client's answer, written straight to its transport."""

import re
from collections.abc import Mapping
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Protocol

from kairos_router.relay import is_stream

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in HTTPStatus}
_NO_BODY = frozenset({204, 304})
_UNSENDABLE = re.compile(r"[\r\n\x00]")  # would end or split a header


class Wire(Protocol):
    """What a sink needs of the connection to its client."""

    def write(self, *data: bytes) -> None:
        """Send; raises ConnectionError when the client is gone."""

    async def drained(self) -> None:
        """Wait until the client has read enough; raises ConnectionError when it is gone."""

    def close(self) -> None:
        """Close once all is sent."""


class PlainSink:
    """Sends one answer to one request; see `job.Sink`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._status = 0
        self._head = b""  # of a stream: goes out with its first part
        self._reads_events = False
        self._ended = False

    @property
    def started(self) -> bool:
        return self._status > 0

    @property
    def status(self) -> int:
        """The status that went to the client."""
        return self._status or 500

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        typed = headers if "content-type" in headers else {"content-type": "application/octet-stream", **headers}
        bodyless = status in _NO_BODY
        head = _head(status, headers if bodyless else {**typed, "content-length": str(len(body))})
        self._status, self._ended = status, True
        # What is counted and logged afterwards keeps no client waiting, and no client that reads slowly holds it up.
        with suppress(ConnectionError):
            self._wire.write(head, b"" if bodyless else body)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._head = _head(status, {**headers, "transfer-encoding": "chunked"})
        self._status, self._reads_events = status, is_stream(headers)

    async def write(self, data: bytes) -> None:
        self._send(b"%x\r\n%b\r\n" % (len(data), data))
        await self._wire.drained()

    async def finish(self, last: bytes = b"") -> None:
        self._ended = True
        if last:
            self._send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            return
        with suppress(ConnectionError):  # the client has its answer and did not wait for the end of the body
            self._send(b"0\r\n\r\n")

    async def abort(self, last: bytes) -> None:
        if self.started and self._reads_events and not self._ended:
            self._send(b"%x\r\n%b\r\n" % (len(last), last))
        self._wire.close()  # without the last chunk, so that the body reads as cut off

    def _send(self, data: bytes) -> None:
        head, self._head = self._head, b""
        self._wire.write(head + data)


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of an answer. Raises ValueError where a header would not stay within its line."""
    lines = [_STATUS_LINES.get(status) or f"HTTP/1.1 {status} "]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    together = "".join(lines)
    if not together.isprintable() and _UNSENDABLE.search(together):
        raise ValueError("an answer's header must have no line break and no NUL")
    lines.append(_DATE.line())
    return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")


class _Date:
    """The header that says when, written anew once a second."""

    def __init__(self) -> None:
        self._second, self._line = 0, ""

    def line(self) -> str:
        second = int(time())
        if second != self._second:
            self._second, self._line = second, f"date: {formatdate(second, usegmt=True)}"
        return self._line


_DATE = _Date()
