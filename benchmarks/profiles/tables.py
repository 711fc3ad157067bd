"""Read the public measurement tables: rows of a CSV, and curves and grids through them."""

import csv
import gzip
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median

Row = Mapping[str, str]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a CSV file, gzipped or plain."""
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def where(rows: Iterable[Row], **wanted: object) -> list[Row]:
    """Keep the rows whose columns have these values."""
    return [row for row in rows if all(row.get(name) == str(value) for name, value in wanted.items())]


class Curve:
    """Seconds by size: medians of repeats, straight lines between sizes, proportional to size beyond the last."""

    def __init__(self, points: Iterable[tuple[float, float]]) -> None:
        by_size = defaultdict(list)
        for size, seconds in points:
            by_size[size].append(seconds)
        self.sizes = sorted(by_size)
        self._seconds = [median(by_size[size]) for size in self.sizes]

    def at(self, size: float) -> float:
        """Seconds for `size`; the first point's below it."""
        if size >= self.sizes[-1]:
            return self._seconds[-1] * size / self.sizes[-1]
        if size <= self.sizes[0]:
            return self._seconds[0]
        right = bisect_right(self.sizes, size)
        left_size, right_size = self.sizes[right - 1], self.sizes[right]
        share = (size - left_size) / (right_size - left_size)
        return self._seconds[right - 1] * (1 - share) + self._seconds[right] * share


def curve(rows: Iterable[Row], size: str, value: str, unit_s: float = 1e-3) -> Curve:
    """Draw a curve through two columns; `unit_s` is the length in seconds of the value's unit."""
    return Curve((float(row[size]), float(row[value]) * unit_s) for row in rows if row[value])


def grid(rows: Iterable[Row], first: str, second: str, value: str, unit_s: float = 1e-3) -> dict[tuple[int, int], float]:
    """Seconds by two sizes, at the measured points only; medians of repeats."""
    found = defaultdict(list)
    for row in rows:
        found[int(row[first]), int(row[second])].append(float(row[value]) * unit_s)
    return {sizes: median(values) for sizes, values in sorted(found.items())}
