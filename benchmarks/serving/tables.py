"""A comparison's tables, as texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.serving.derive import Point, Spread
from vllm_kairos.simulate.report import Table

_COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("TTFT p50, ms", "ttft_p50_s", 1e3, ",.0f"),
    ("p95", "ttft_p95_s", 1e3, ",.0f"),
    ("p99", "ttft_p99_s", 1e3, ",.0f"),
    ("TBT p50, ms", "tbt_p50_s", 1e3, ",.1f"),
    ("p95", "tbt_p95_s", 1e3, ",.1f"),
    ("p99", "tbt_p99_s", 1e3, ",.1f"),
    ("gaps over TBT, %", "tbt_violation_share", 100, ".2f"),
    ("attained, %", "slo_attainment", 100, ".1f"),
    ("output tokens/s", "output_tokens_per_s", 1, ",.0f"),
    ("goodput, requests/s", "goodput_rps", 1, ".2f"),
    ("deflected, %", "deflected_share", 100, ".0f"),
    ("failed", "failed", 1, ",.0f"),
    ("unanswered", "unanswered", 1, ",.0f"),
    ("router CPU, s", "front_cpu_s", 1, ".1f"),
    ("machine busy, %", "busy_share", 100, ".0f"),
)


def all_tables(points: Sequence[Point], derived: Mapping[str, Any]) -> list[Table]:
    """The page's tables, what matters most first."""
    leases = lease_tables(derived["leases"]) if derived.get("leases") else []
    by_rate = [_rate_table(points, rate) for rate in rates_of(points)]
    return [*leases, sustained_table(derived), rates_table(derived), *by_rate]


def rates_of(points: Iterable[Point]) -> list[float]:
    """Rising."""
    return sorted({point.rate_rps for point in points})


def sustained_table(derived: Mapping[str, Any]) -> Table:
    """The highest rate of each contender, by each measure, and ours over it."""
    sustained, ratios = derived["sustained_rps"], derived["ours_over"]
    measures = list(next(iter(sustained.values()), {}))
    headings = ["", *(f"{measure.replace('_', ' ')}" for measure in measures), "ours over it: all attain", "99 percent"]
    rows = []
    for contender, rates in sustained.items():
        over = ratios.get(contender, {})
        cells = [_text(rates[measure], ".3g") for measure in measures]
        rows.append([contender, *cells, *(_text(over.get(name), ".2f") for name in ("all_attain", "99_percent_attain"))])
    return Table("Sustained requests per second", headings, rows)


def rates_table(derived: Mapping[str, Any]) -> Table:
    """Ours against plain P/D at every rate."""
    headings = ["requests/s", "P95 TTFT cut, %", "output tokens, ratio", "P95 TTFT over the better of never and always"]
    rows = [
        [
            f"{one['rate_rps']:g}",
            _text(one["p95_ttft_cut"], ".0f", 100),
            _text(one["output_tokens_ratio"], ".3f"),
            _text(one["p95_ttft_over_better"], ".2f"),
        ]
        for one in derived["by_rate"]
    ]
    worse = frozenset(at for at, one in enumerate(derived["by_rate"]) if one["never_worse"] is False)
    return Table("kairos against plain P/D (never), medians of ratios within repeats", headings, rows, worse)


def lease_tables(leases: Mapping[str, Any]) -> list[Table]:
    """Leases against the others at every rate, two routers, and what the engines put late tokens down to."""
    return [_leases_over(leases), _two_routers_table(leases), _causes_table(leases)]


def _leases_over(leases: Mapping[str, Any]) -> Table:
    titles = [name for name in next(iter(leases["by_rate"]), {}) if name != "rate_rps"]
    rows = [[f"{one['rate_rps']:g}", *(_text(one[title], ".2f") for title in titles)] for one in leases["by_rate"]]
    headings = ["requests/s", *(title.replace("_", " ") for title in titles)]
    return Table("crossflow over others, medians of ratios within repeats", headings, rows)


def _two_routers_table(leases: Mapping[str, Any]) -> Table:
    headings = [
        "",
        "requests/s",
        "twice one's load",
        "deflected, %",
        "gaps over TBT by deflection, %",
        "by any cause",
        "P95 TTFT over one's",
    ]
    rows = [
        [
            one["contender"],
            f"{one['rate_rps']:g}",
            "yes" if one["is_twice_the_load_of_one"] else "",
            _percent(one["requests_deflected_share"]),
            _percent(one["deflected_share"]),
            _percent(one["all_causes_share"]),
            _text(one["p95_ttft_over_one_router"], ".2f"),
        ]
        for one in leases["two_routers"]
    ]
    over = frozenset(at for at, one in enumerate(leases["two_routers"]) if one["within_limit"] is False)
    return Table(
        f"Two routers; the limit on deflection's share is {leases['most_share']:.1%} in every repeat", headings, rows, over
    )


def _causes_table(leases: Mapping[str, Any]) -> Table:
    causes = sorted({cause for one in leases["engines"] for cause in one["violation_shares"]})
    rows = [
        [
            one["contender"],
            f"{one['rate_rps']:g}",
            *(_percent(one["violation_shares"].get(cause)) for cause in causes),
            _percent(one["violation_share"]),
            _percent(one["refused_share"]),
        ]
        for one in leases["engines"]
    ]
    headings = ["", "requests/s", *causes, "all causes", "refused leases, %"]
    return Table("Gaps over TBT as the engines attribute them, % of all gaps: median (most)", headings, rows)


def _percent(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['median'] * 100:.2f} ({spread['most'] * 100:.2f})"


def _rate_table(points: Iterable[Point], rate_rps: float) -> Table:
    here = [point for point in points if point.rate_rps == rate_rps]
    headings = ["", *(title for title, *_ in _COLUMNS), "repeats"]
    rows = [[point.contender, *(_spread(point, *column[1:]) for column in _COLUMNS), _repeats(point)] for point in here]
    care = frozenset(at for at, point in enumerate(here) if point.failed_cells)
    return Table(f"At {rate_rps:g} requests/s: median (least to most)", headings, rows, care)


def _repeats(point: Point) -> str:
    return f"{point.repeats}" + (f", {point.failed_cells} failed" if point.failed_cells else "")


def _spread(point: Point, name: str, factor: float, form: str) -> str:
    spread: Spread | None = point.figures.get(name)
    if spread is None:
        return "-"
    shown: Callable[[float], str] = lambda value: format(value * factor, form)  # noqa: E731
    middle, least, most = map(shown, (spread.median, spread.least, spread.most))
    return middle if least == most else f"{middle} ({least} to {most})"


def _text(value: float | None, form: str, factor: float = 1.0) -> str:
    return "-" if value is None else format(value * factor, form)
