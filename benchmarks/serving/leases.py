"""What leases do, from cells: against one deflected prompt per node and plain P/D, and with two routers. Pure.

Causes are the engines' own, over all gaps that they count. Ratios are medians of those within repeats.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from statistics import geometric_mean, median
from typing import Any

from benchmarks.serving.derive import OURS, PLAIN, Spread, paired
from benchmarks.serving.record import Row

LEASED = "crossflow"
TWO_ROUTERS = "-two-routers"
MOST_SHARE = 0.005
"""Most gaps that two routers may make too long by deflecting, as a share of all gaps."""

_VIOLATIONS = "violations_"
_RATIOS = {"p95_ttft": "ttft_p95_s", "mean_ttft": "ttft_mean_s", "output_tokens": "output_tokens_per_s"}


def leases_of(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Everything, for comparison.json; None where no contender spends leases."""
    good = [row for row in rows if row["status"] == "ok"]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    if not any(name.removesuffix(TWO_ROUTERS) == LEASED for name in names):
        return None
    ratios = {kind: {name: _ratios(good, name, figure) for name in (PLAIN, OURS)} for kind, figure in _RATIOS.items()}
    two = [
        _two_routers(good, name, rate_rps) for name in names if name.endswith(TWO_ROUTERS) for rate_rps in _rates(good, name)
    ]
    return {
        "by_rate": [_at(ratios, rate_rps) for rate_rps in _rates(good, LEASED)],
        "engines": [_engines(good, name, rate_rps) for name in names for rate_rps in _rates(good, name)],
        "two_routers": two,
        "most_share": MOST_SHARE,
        "two_routers_within_limit": _all(one["within_limit"] for one in two if one["contender"] == LEASED + TWO_ROUTERS),
        "output_tokens_over_never_geometric_mean": _geometric_mean(ratios["output_tokens"][PLAIN].values()),
        "mean_ttft_lower_everywhere": _all(ratio < 1.0 for ratio in ratios["mean_ttft"][PLAIN].values()),
    }


def _at(ratios: dict[str, dict[str, dict[float, float]]], rate_rps: float) -> dict[str, Any]:
    """Leases over each other contender at a rate."""
    over = {f"{kind}_over_{name}": by_rate.get(rate_rps) for kind, named in ratios.items() for name, by_rate in named.items()}
    return {"rate_rps": rate_rps, **over}


def _engines(rows: Sequence[Row], contender: str, rate_rps: float) -> dict[str, Any]:
    """What the engines count of a contender at a rate; None where they count no gaps."""
    here = [row for row in _of(rows, contender, rate_rps) if row.get("engine_gaps")]
    causes = sorted({cause for row in here for cause in _causes(row)})
    refused = [share for row in _of(rows, contender, rate_rps) if (share := refused_share(row)) is not None]
    return {
        "contender": contender,
        "rate_rps": rate_rps,
        "violation_shares": {cause: _spread([violation_share(row, cause) for row in here]) for cause in causes},
        "violation_share": _spread([_whole(row) for row in here]),
        "refused_share": _spread(refused),
    }


def _two_routers(rows: Sequence[Row], contender: str, rate_rps: float) -> dict[str, Any]:
    """Two routers at a rate, and what they are to one: the same load through one, and half of it.

    Where nothing was deflected there is no verdict on deflection.
    """
    one = contender.removesuffix(TWO_ROUTERS)
    here = [row for row in _of(rows, contender, rate_rps) if row.get("engine_gaps")]
    shares = {
        "deflected_share": [violation_share(row, "deflected") for row in here],
        "all_causes_share": list(map(_whole, here)),
    }
    over_one = paired(rows, contender, one, "ttft_p95_s").get(rate_rps)
    return {
        "contender": contender,
        "rate_rps": rate_rps,
        "is_twice_the_load_of_one": rate_rps / 2 in _rates(rows, one),
        **{name: _spread(each) for name, each in shares.items()},
        "requests_deflected_share": _spread([row["deflected_share"] for row in here]),
        "within_limit": max(shares["deflected_share"]) <= MOST_SHARE if any(row["deflected_share"] for row in here) else None,
        "all_causes_within_limit": max(shares["all_causes_share"]) <= MOST_SHARE if here else None,
        "p95_ttft_over_one_router": median(over_one) if over_one else None,
    }


def violation_share(row: Row, cause: str) -> float:
    """Gaps over the objective that the engines put down to `cause`, of all gaps."""
    share: float = row.get(f"{_VIOLATIONS}{cause}", 0.0) / row["engine_gaps"]
    return share


def _whole(row: Row) -> float:
    return sum(violation_share(row, cause) for cause in _causes(row))


def _causes(row: Row) -> list[str]:
    return sorted(name.removeprefix(_VIOLATIONS) for name in row if name.startswith(_VIOLATIONS))


def refused_share(row: Row) -> float | None:
    """Deflected requests whose lease did not cover them, of all that claimed one; None where none did."""
    refused: float = row.get("lease_refusals", 0.0)
    claimed = refused + row.get("lease_admissions", 0.0)
    return refused / claimed if claimed else None


def _ratios(rows: Sequence[Row], other: str, figure: str) -> dict[float, float]:
    return {rate_rps: median(ratios) for rate_rps, ratios in paired(rows, LEASED, other, figure).items()}


def _rates(rows: Iterable[Row], contender: str) -> list[float]:
    return sorted({row["rate_rps"] for row in rows if row["contender"] == contender})


def _of(rows: Iterable[Row], contender: str, rate_rps: float) -> list[Row]:
    return [row for row in rows if (row["contender"], row["rate_rps"]) == (contender, rate_rps)]


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    return asdict(Spread.of(values)) if values else None


def _geometric_mean(values: Iterable[float]) -> float | None:
    positive = [value for value in values if value > 0]
    return geometric_mean(positive) if positive else None


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    """None where there are none; what is not known is not held against it."""
    known = [verdict for verdict in verdicts if verdict is not None]
    return all(known) if known else None
