"""Server-sent events out of whatever pieces the network delivers."""


class EventParser:
    """Feed it bytes; it gives back the data of every event that is complete, each once."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes; lines end with LF or CRLF."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        events = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        return events

    def close(self) -> list[bytes]:
        """The data of a last event that no empty line ends."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> bytes | None:
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            event, self._data = b"\n".join(self._data), []
            return event
        return None
