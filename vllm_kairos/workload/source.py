"""Read a trace file as records: plain or gzipped, CSV or JSON lines, every value checked as it is taken."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf, isfinite
from pathlib import Path
from typing import Any, TextIO

from vllm_kairos.errors import WorkloadError

MOST_LINE_CHARACTERS = 16 * 2**20
"""A device that never ends is refused here; the longest rows of known traces have some 100,000."""

_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Record:
    """One row of a file, with typed access to its fields. Rows are the file's lines, from 1; a CSV's header is row 1."""

    path: Path
    row: int
    values: Mapping[str, Any]

    def integer(self, name: str, *, least: int) -> int:
        """The whole number in field `name`. Raises WorkloadError unless it is one, and at least `least`."""
        number = _whole(self._value(name))
        if number is None or number < least:
            raise self.error(name, f"a whole number >= {least}")
        return number

    def number(self, name: str, *, least: float = 0.0, most: float = inf) -> float:
        """The finite number in field `name`. Raises WorkloadError unless it is one, and in [`least`, `most`]."""
        number = _real(self._value(name))
        if number is None or not least <= number <= most:
            raise self.error(name, f"a finite number >= {least:g}" if most == inf else f"a number in [{least:g}, {most:g}]")
        return number

    def text(self, name: str) -> str:
        """The text in field `name`. Raises WorkloadError unless it is text."""
        value = self._value(name)
        if not isinstance(value, str):
            raise self.error(name, "text")
        return value

    def items(self, name: str) -> list[Any]:
        """The list in field `name`. Raises WorkloadError unless it is one."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.error(name, "a list")
        return value

    def integers(self, name: str) -> tuple[int, ...]:
        """The list of whole numbers in field `name`, of any size. Raises WorkloadError unless it is one."""
        items = self.items(name)
        if any(type(item) is not int for item in items):
            raise self.error(name, "a list of whole numbers")
        return tuple(items)

    def inner(self, name: str) -> "Record":
        """The JSON object in field `name`, as a record of the same row. Raises WorkloadError unless it is one."""
        value = self._value(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Record(self.path, self.row, value)

    def inners(self, name: str) -> list["Record"]:
        """The JSON objects of the list in field `name`. Raises WorkloadError unless it is a list of objects."""
        items = self.items(name)
        if any(not isinstance(item, dict) for item in items):
            raise self.error(name, "a list of objects")
        return [Record(self.path, self.row, item) for item in items]

    def has(self, name: str) -> bool:
        """Whether field `name` is there and not null."""
        return self.values.get(name) is not None

    def error(self, name: str, rule: str) -> WorkloadError:
        """What to raise when field `name` breaks `rule`."""
        return WorkloadError(f"{self.path}: row {self.row}: {name} must be {rule}, got {_shown(self.values[name])}")

    def _value(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise WorkloadError(f"{self.path}: row {self.row}: {name} is missing; the row has {list(self.values)}") from None


def _whole(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
    number = _real(value)
    return int(number) if number is not None and number.is_integer() else None


def _real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file. Every method raises WorkloadError when the file cannot be read as what it should be.

    As a context manager it closes what an error left open in the middle of reading.
    """

    path: Path
    _opened: list[TextIO] = field(default_factory=list, init=False, repr=False, compare=False)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._opened:
            stream.close()

    @property
    def name(self) -> str:
        """The file's name without what says how it is stored."""
        return self.path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl")

    def first_record(self) -> Record:
        """The first JSON object, or the CSV header as a record whose values are all empty."""
        with self._open() as stream:
            line = next((line for line in self._lines(stream) if line.strip()), "")
        if not line:
            raise WorkloadError(f"{self.path}: must have at least one row, got an empty file")
        if line.lstrip().startswith("{"):
            return next(self.json_records())
        return Record(self.path, 1, dict.fromkeys(_cells(line), ""))

    def csv_records(self) -> Iterator[Record]:
        """The rows below the header, by the header's names."""
        with self._open() as stream:
            reader = csv.reader(self._lines(stream))
            header = [name.strip() for name in next(reader, [])]
            twice = next((name for name in header if header.count(name) > 1), None)
            if twice is not None:
                raise WorkloadError(f"{self.path}: row 1 must name each column once, got {_shown(twice)} twice")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    where = f"{self.path}: row {reader.line_num}"
                    raise WorkloadError(f"{where} must have {len(header)} columns, as the header, got {len(cells)}")
                yield Record(self.path, reader.line_num, dict(zip(header, cells, strict=True)))

    def json_records(self) -> Iterator[Record]:
        """The objects of a JSON-lines file; blank lines are passed over."""
        with self._open() as stream:
            for row, line in enumerate(self._lines(stream), start=1):
                if line.strip():
                    yield Record(self.path, row, self._object(row, line))

    def _lines(self, stream: TextIO) -> Iterator[str]:
        for row in count(1):
            line = stream.readline(MOST_LINE_CHARACTERS)
            if len(line) == MOST_LINE_CHARACTERS:
                raise WorkloadError(f"{self.path}: row {row} must be shorter than {MOST_LINE_CHARACTERS} characters, got more")
            if not line:
                return
            yield line

    def _object(self, row: int, line: str) -> dict[str, Any]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WorkloadError(f"{self.path}: row {row} must be a JSON object, got {_shown(line)}: {error}") from None
        if not isinstance(value, dict):
            raise WorkloadError(f"{self.path}: row {row} must be a JSON object, got {_shown(line)}")
        return value

    @contextmanager
    def _open(self) -> Iterator[TextIO]:
        try:
            with self.path.open("rb") as stream:
                zipped = stream.read(2) == _GZIP_MAGIC
            opener: Any = gzip.open if zipped else open
            with opener(self.path, "rt", encoding="utf-8-sig", newline="") as text:
                self._opened.append(text)
                yield text
        except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
            raise WorkloadError(f"{self.path}: cannot be read: {error}") from error


def _cells(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line]))]
