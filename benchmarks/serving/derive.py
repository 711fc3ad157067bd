"""From cells to what they say: medians and spread, sustained rates, ratios. Pure.

Ratios of two contenders are taken within a repeat, where both had the same requests, and then their median; medians of
single figures are over repeats. Rates are those that were run, unless `interpolated` is in the name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.serving.record import Row

PLAIN, OURS, LOCAL = "never", "kairos", "always"
NEVER_WORSE = 1.05
"""Most that P95 TTFT of `kairos` may be over the better of `never` and `always`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Over the repeats."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(median=median(values), least=min(values), most=max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A contender at a rate: every figure's spread over the repeats that gave it."""

    contender: str
    rate_rps: float
    repeats: int
    failed_cells: int
    figures: Mapping[str, Spread]

    def middle(self, name: str) -> float | None:
        """The median, None where no repeat has the figure."""
        return self.figures[name].median if name in self.figures else None


def points_of(rows: Iterable[Row]) -> list[Point]:
    """Every contender at every rate, in order of first occurrence and of rates."""
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["contender"], row["rate_rps"]), []).append(row)
    order = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in groups))}
    return [_point(*key, groups[key]) for key in sorted(groups, key=lambda key: (order[key[0]], key[1]))]


def _point(contender: str, rate_rps: float, rows: Sequence[Row]) -> Point:
    good = [row for row in rows if row["status"] == "ok"]
    names = dict.fromkeys(name for row in good for name, value in row.items() if _is_figure(name, value))
    figures = {name: Spread.of([row[name] for row in good if row.get(name) is not None]) for name in names}
    return Point(contender=contender, rate_rps=rate_rps, repeats=len(good), failed_cells=len(rows) - len(good), figures=figures)


def _is_figure(name: str, value: Any) -> bool:
    return isinstance(value, int | float) and name not in ("repeat", "rate_rps")


def curve(points: Iterable[Point], contender: str, name: str) -> list[tuple[float, float]]:
    """(rate, median) of one contender, rates rising; rates without the figure are left out."""
    known = ((point.rate_rps, point.middle(name)) for point in points if point.contender == contender)
    return sorted((rate_rps, value) for rate_rps, value in known if value is not None)


def sustained_rps(points: Iterable[Point], contender: str, holds: Callable[[Point], bool]) -> float | None:
    """The highest rate at which, and at all lower ones, `holds`; None when it does not at the lowest."""
    best = None
    for point in sorted((one for one in points if one.contender == contender), key=lambda one: one.rate_rps):
        if point.repeats == 0 or point.failed_cells or not holds(point):
            break
        best = point.rate_rps
    return best


def crossing_rps(line: Sequence[tuple[float, float]], limit: float) -> float | None:
    """The rate at which a falling line, straight between its points, first goes below `limit`; None when nowhere."""
    for (rate, value), (next_rate, next_value) in pairwise(line):
        if value >= limit > next_value:
            return rate + (next_rate - rate) * (value - limit) / (value - next_value)
    return None


def paired(rows: Iterable[Row], above: str, below: str, name: str) -> dict[float, list[float]]:
    """By rate, the ratio of one contender's figure to another's in every repeat that has both."""
    values = {(row["contender"], row["rate_rps"], row["repeat"]): row.get(name) for row in rows if row["status"] == "ok"}
    ratios: dict[float, list[float]] = {}
    for (contender, rate_rps, repeat), value in sorted(values.items(), key=lambda item: item[0][1:]):
        other = values.get((below, rate_rps, repeat))
        if contender == above and value is not None and other:
            ratios.setdefault(rate_rps, []).append(value / other)
    return ratios


def attains(share: float) -> Callable[[Point], bool]:
    """Median joint attainment of at least `share`."""
    return lambda point: (point.middle("slo_attainment") or 0.0) >= share


def attains_always(share: float) -> Callable[[Point], bool]:
    """The same in every repeat."""
    return lambda point: point.figures["slo_attainment"].least >= share


def within_p95(ttft_s: float, tbt_s: float) -> Callable[[Point], bool]:
    """Median P95 TTFT and P95 TBT within the objectives, as the paper's figures have it."""

    def holds(point: Point) -> bool:
        ttft, tbt = point.middle("ttft_p95_s"), point.middle("tbt_p95_s")
        return ttft is not None and ttft <= ttft_s and (tbt is None or tbt <= tbt_s)

    return holds


def sustained_of(points: Sequence[Point], ttft_s: float, tbt_s: float) -> dict[str, dict[str, float | None]]:
    """Every contender's rates by each measure."""
    rules = {
        "all_attain": attains(1.0),
        "all_attain_in_every_repeat": attains_always(1.0),
        "99_percent_attain": attains(0.99),
        "p95_within_objectives": within_p95(ttft_s, tbt_s),
    }
    found: dict[str, dict[str, float | None]] = {}
    for contender in dict.fromkeys(point.contender for point in points):
        rates = {name: sustained_rps(points, contender, holds) for name, holds in rules.items()}
        line = curve(points, contender, "slo_attainment")
        found[contender] = rates | {"99_percent_interpolated": crossing_rps(line, 0.99)}
    return found


def ratios_to(sustained: Mapping[str, Mapping[str, float | None]], ours: str = OURS) -> dict[str, dict[str, float | None]]:
    """Our sustained rates over each other contender's."""
    if ours not in sustained:
        return {}
    return {
        name: {measure: _ratio(sustained[ours][measure], rate) for measure, rate in rates.items()}
        for name, rates in sustained.items()
        if name != ours
    }


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def knee_rps(points: Iterable[Point], ttft_s: float, contender: str = PLAIN) -> float | None:
    """The lowest rate at which the median P95 TTFT is over the objective; None when at none."""
    return next((rate_rps for rate_rps, value in curve(points, contender, "ttft_p95_s") if value > ttft_s), None)


def by_rate(rows: Sequence[Row], points: Sequence[Point]) -> list[dict[str, Any]]:
    """Ours against plain P/D at every rate, every other contender's cut too, and whether ours is never worse."""
    names = dict.fromkeys(point.contender for point in points if point.contender != PLAIN)
    cuts = {name: paired(rows, name, PLAIN, "ttft_p95_s") for name in names}
    output = paired(rows, OURS, PLAIN, "output_tokens_per_s")
    found = []
    for rate_rps in sorted({point.rate_rps for point in points}):
        worse = _over_better(rows, rate_rps)
        cut = {name: 1.0 - median(ratios[rate_rps]) for name, ratios in cuts.items() if rate_rps in ratios}
        found.append(
            {
                "rate_rps": rate_rps,
                "p95_ttft_cut": cut.get(OURS),
                "p95_ttft_cut_of": cut,
                "output_tokens_ratio": median(output[rate_rps]) if rate_rps in output else None,
                "p95_ttft_over_better": worse,
                "never_worse": None if worse is None else worse <= NEVER_WORSE,
            }
        )
    return found


def _over_better(rows: Sequence[Row], rate_rps: float) -> float | None:
    """Median over repeats of our P95 TTFT over the better of never's and always's, of those that were run."""
    values = {
        (row["contender"], row["repeat"]): row["ttft_p95_s"]
        for row in rows
        if row["rate_rps"] == rate_rps and row.get("ttft_p95_s") is not None
    }
    ratios = []
    for (contender, repeat), value in values.items():
        others = [values[name, repeat] for name in (PLAIN, LOCAL) if (name, repeat) in values]
        if contender == OURS and others:
            ratios.append(value / min(others))
    return median(ratios) if ratios else None


def derived(rows: Sequence[Row], *, ttft_s: float, tbt_s: float) -> dict[str, Any]:
    """Everything, for comparison.json."""
    points = points_of(rows)
    sustained, rates = sustained_of(points, ttft_s, tbt_s), by_rate(rows, points)
    knee = knee_rps(points, ttft_s)
    cuts = [one["p95_ttft_cut"] for one in rates if one["p95_ttft_cut"] is not None]
    return {
        "sustained_rps": sustained,
        "ours_over": ratios_to(sustained),
        "knee_rps": knee,
        "p95_ttft_cut_at_knee": next((one["p95_ttft_cut"] for one in rates if one["rate_rps"] == knee), None),
        "best_p95_ttft_cut": max(cuts, default=None),
        "by_rate": rates,
        "never_worse_everywhere": all(one["never_worse"] is not False for one in rates),
    }
