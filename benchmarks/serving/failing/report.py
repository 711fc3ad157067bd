"""Cells summed up over repeats, as a table for a terminal and for the documentation: pure."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.serving.failing.scenarios import SCENARIOS, Scenario
from benchmarks.serving.failing.verdict import Verdict

_HEAD = (
    "failure",
    "router",
    "sent",
    "right",
    *(verdict.value for verdict in Verdict if verdict is not Verdict.RIGHT),
    "failed",
    "failing for",
    "slow for",
    "used again after",
    "retries",
)


def summed(cells: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per scenario and router: counts are sums, times the worst of the repeats."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for cell in cells:
        groups.setdefault((cell["scenario"], cell["contender"]), []).append(cell)
    order = list(SCENARIOS)
    return [_row(groups[key]) for key in sorted(groups, key=lambda key: (order.index(key[0]), key[1]))]


def _row(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first, requests = cells[0], sum(cell["requests"] for cell in cells)
    verdicts = {verdict.value: sum(cell["verdicts"][verdict] for cell in cells) for verdict in Verdict}
    return {
        "scenario": first["scenario"],
        "contender": first["contender"],
        "repeats": len(cells),
        "requests": requests,
        **verdicts,
        "failed_share": 1 - verdicts[Verdict.RIGHT] / requests if requests else None,
        "under_way": sum(cell["under_way"] for cell in cells),
        "under_way_failed": sum(cell["under_way_failed"] for cell in cells),
        "failed_before": sum(cell["failed_before"] for cell in cells),
        "failed_after_return": _total(cell["failed_after_return"] for cell in cells),
        "ttft_before_s": _median(cell["recovery"]["ttft_before_s"] for cell in cells),
        "failing_s": _worst(cell["recovery"]["failing_s"] for cell in cells),
        "slow_s": _worst(cell["recovery"]["slow_s"] for cell in cells),
        "slow_requests": sum(cell["recovery"]["slow_requests"] for cell in cells),
        "back_after_s": _worst(_between(cell, "start", "healthy") for cell in cells),
        "used_after_s": _worst(_between(cell, "healthy", "used") for cell in cells),
        "retries": sum(_retries(cell["router_counters"]) for cell in cells),
        "errors": _merged(cell["errors"] for cell in cells),
        "examples": {kind: text for cell in cells for kind, text in cell["examples"].items()},
    }


def _retries(counters: Mapping[str, float]) -> float:
    """What our router counts, else what any counts: ours also has the other's names."""
    ours = counters.get("kairos_router_retries_total")
    others = (value for name, value in counters.items() if name.endswith("retries_total"))
    return ours if ours is not None else max(others, default=0.0)


def _between(cell: Mapping[str, Any], first: str, then: str) -> float | None:
    moments = cell["moments_s"]
    return moments[then] - moments[first] if first in moments and then in moments else None


def _worst(values: Iterable[float | None]) -> float | None:
    """None where any is: that repeat did not recover."""
    known = list(values)
    return None if any(value is None for value in known) else max(value for value in known if value is not None)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _total(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _merged(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for kind, count in each.items():
            total[kind] = total.get(kind, 0) + count
    return dict(sorted(total.items()))


def table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Words of each line, the head first."""
    return [_HEAD, *(_line(row, SCENARIOS[row["scenario"]]) for row in rows)]


def _line(row: Mapping[str, Any], scenario: Scenario) -> tuple[str, ...]:
    verdicts = (str(row[verdict.value]) for verdict in Verdict)
    used = "" if scenario.back_s is None else _seconds(row["used_after_s"], "not")
    return (
        scenario.title,
        row["contender"],
        str(row["requests"]),
        *verdicts,
        "-" if row["failed_share"] is None else f"{row['failed_share']:.1%}",
        _seconds(row["failing_s"], "to the end"),
        _seconds(row["slow_s"], "to the end"),
        used,
        f"{row['retries']:.0f}",
    )


def _seconds(value_s: float | None, otherwise: str) -> str:
    return otherwise if value_s is None else f"{value_s:.1f} s"


def as_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """For a terminal."""
    lines = table(rows)
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """For the documentation."""
    head, *lines = table(rows)
    return "\n".join(f"| {' | '.join(words)} |" for words in (head, tuple("---" for _ in head), *lines))
