"""Warnings gathered while a trace is read: one line per kind, however many rows share it."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Remarks:
    """What a person should know about a trace that was read all the same."""

    _first: dict[str, str] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str, text: str) -> None:
        """Keep `text` when it is the first of its kind, else count it."""
        self._first.setdefault(kind, text)
        self._counts[kind] = self._counts.get(kind, 0) + 1

    def lines(self) -> tuple[str, ...]:
        """One warning per kind, in the order they first came up."""
        return tuple(self._line(kind) for kind in self._first)

    def _line(self, kind: str) -> str:
        more = self._counts[kind] - 1
        return f"{self._first[kind]} (and {more} more like it)" if more else self._first[kind]
