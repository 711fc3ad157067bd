"""Server-sent events, pure: cut a byte stream into whole events and read what each one says.

Events pass to the client as the bytes that came; only one that shows `kv_transfer_params` is rewritten.
"""

import re
from collections.abc import Iterator

import msgspec

from kairos_router.answers import KV_KEY_BYTES, Usage, strip_kv_params

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""A longer event is passed on unread rather than held."""

_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\n\r\n")
_OVERLAP_BYTES = 3  # an event's end may straddle two reads
_LINE_END = re.compile(rb"\r?\n")
_DONE = b"[DONE]"


class EventSplitter:
    """Cuts a byte stream into events, each with the blank line that ends it."""

    def __init__(self) -> None:
        self._tail = bytearray()

    def plain(self, chunk: bytes) -> list[bytes] | None:
        """Return the data of a chunk that is whole events of one data line each, as nearly all are; None: feed it."""
        if (
            self._tail
            or b"\r" in chunk
            or KV_KEY_BYTES in chunk
            or not chunk.startswith(b"data: ")
            or not chunk.endswith(b"\n\n")
        ):
            return None
        data = chunk[6:-2].split(b"\n\ndata: ")
        return data if chunk.count(b"\n") == 2 * len(data) else None

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that `chunk` completed."""
        search_from = max(0, len(self._tail) - _OVERLAP_BYTES)
        self._tail += chunk
        events, start = [], 0
        for end in self._ends(search_from):
            events.append(bytes(self._tail[start:end]))
            start = end
        del self._tail[:start]
        if len(self._tail) > MAX_EVENT_BYTES:
            events.append(self.finish())
        return events

    def finish(self) -> bytes:
        """Return what is left when the stream ends: an event without its blank line, or b""."""
        rest = bytes(self._tail)
        self._tail.clear()
        return rest

    def _ends(self, search_from: int) -> Iterator[int]:
        for match in _EVENT_END.finditer(self._tail, search_from):
            yield match.end()


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None

    @property
    def says_something(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    @property
    def brings_text(self) -> bool:
        """Generated text, not only a role or a finish reason."""
        return bool(self.text) or (self.delta is not None and self.delta.says_something)


_NO_ERROR = msgspec.Raw(b"null")


class Event(msgspec.Struct, frozen=True):
    """One event's JSON, as far as the router reads it."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = _NO_ERROR

    @property
    def has_error(self) -> bool:
        return self.error is not _NO_ERROR and bytes(self.error) != b"null"


_EVENT_DECODER = msgspec.json.Decoder(Event)


def data_of(event: bytes) -> bytes:
    """Join the `data:` lines of one event."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and event.endswith(b"\n\n"):
        return event[6:-2].removesuffix(b"\r")  # one line, as nearly always
    lines = [line for line in _LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)


def _with_data(event: bytes, data: bytes) -> bytes:
    kept = [line for line in _LINE_END.split(event) if line and not line.startswith(b"data:")]
    return b"".join(line + b"\n" for line in (*kept, b"data: " + data)) + b"\n"


def read(data: bytes) -> Event | None:
    """Decode one event's data, None when it is not the JSON of an answer."""
    try:
        return _EVENT_DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None


class StreamScanner:
    """Sees each event of one answer once, however the stream was cut, and keeps the account of it."""

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self.saw_text = False
        self.saw_done = False
        self.error: bytes | None = None  # the data of the first error event
        self.finish_reason: str | None = None
        self.usage: Usage | None = None
        self.text_events = 0
        self.events = 0

    @property
    def complete(self) -> bool:
        """The answer reached its end: [DONE], or a finish reason where the server sends no [DONE]."""
        return self.saw_done or self.finish_reason is not None

    def feed(self, chunk: bytes) -> bytes:
        """Take what the server sent; return what the client gets of it: whole events only."""
        plain = self._splitter.plain(chunk)
        if plain is None:
            return b"".join([self._see(event) for event in self._splitter.feed(chunk)])
        for data in plain:
            self._read(data)
        return chunk

    def finish(self) -> bytes:
        """Take the end of the stream; return the last event when it lacks its blank line."""
        rest = self._splitter.finish()
        return self._see(rest) if rest else b""

    def _see(self, event: bytes) -> bytes:
        data = data_of(event)
        self._read(data)
        clean = strip_kv_params(data)
        return event if clean is data else _with_data(event, clean)

    def _read(self, data: bytes) -> None:
        if not data:
            return
        self.events += 1
        if data.strip() == _DONE:
            self.saw_done = True
            return
        said = read(data)
        if said is not None:
            self._account(said, data)

    def _account(self, event: Event, data: bytes) -> None:
        brings_text = False
        for choice in event.choices:
            brings_text = brings_text or bool(choice.text) or choice.brings_text
            if choice.finish_reason:
                self.finish_reason = choice.finish_reason
        if brings_text:
            self.saw_text = True
            self.text_events += 1
        if event.error is not _NO_ERROR and event.has_error and self.error is None:
            self.error = data
        if event.usage is not None:
            self.usage = event.usage


def error_event(message: str, kind: str, status: int) -> bytes:
    """The event that ends a broken stream in place of [DONE]."""
    error = {"error": {"message": message, "type": kind, "code": status}}
    return b"data: " + msgspec.json.encode(error) + b"\n\n"
