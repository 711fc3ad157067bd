"""The tables of docs/policies.md from the policy table's JSON.

python -m benchmarks.sim.policy_markdown benchmarks/results/sim/policy-table.json
"""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.sim.claim import compliant

Row = dict[str, Any]
_OURS = "kairos"


def main(argv: Sequence[str] | None = None) -> None:
    """Print both tables."""
    path, *_ = sys.argv[1:] if argv is None else argv
    document = json.loads(Path(path).read_text())
    print("\n".join([*policy_table(document["rows"]), "", *ablation_table(document)]))  # noqa: T201


def policy_table(rows: Sequence[Row]) -> list[str]:
    """P95 TTFT in seconds, a line for each trace, profile and load; * where the arm is not compliant."""
    policies = _distinct(row["policy"] for row in rows)
    cells = _distinct((row["trace"], row["profile"], row["load"]) for row in rows)
    by_key = {(row["trace"], row["profile"], row["load"], row["policy"]): row for row in rows}
    lines = [_line(["trace, profile", "load", *(f"`{policy}`" for policy in policies)]), _rule(2, len(policies))]
    for trace, profile, load in cells:
        found = [by_key.get((trace, profile, load, policy)) for policy in policies]
        lines.append(_line([f"{trace}, {profile.split('-')[0]}", f"{load}", *(_p95(row) for row in found)]))
    return lines


def ablation_table(document: dict[str, Any]) -> list[str]:
    """P95 TTFT over that of `kairos` in the same cell, and the most violations of any cell."""
    ablated, plain = document["ablations"], {_cell(row): row for row in document["rows"] if row["policy"] == _OURS}
    if not ablated:
        return []
    cells = _distinct(_cell(row) for row in ablated)
    lines = [
        _line(["row", *(f"{trace}, {profile.split('-')[0]}, {load}" for trace, profile, load in cells), "most violations"]),
        _rule(1, len(cells) + 1),
    ]
    for name in _distinct(row["policy"] for row in ablated):
        found = {_cell(row): row for row in ablated if row["policy"] == name}
        ratios = [
            f"{found[cell]['ttft_p95_ms'] / plain[cell]['ttft_p95_ms']:.2f}" if cell in found and cell in plain else ""
            for cell in cells
        ]
        lines.append(_line([f"`{name}`", *ratios, f"{max(row['violations'] for row in found.values()):.2%}"]))
    return lines


def _cell(row: Row) -> tuple[str, str, float]:
    return row["trace"], row["profile"], row["load"]


def _p95(row: Row | None) -> str:
    return "" if row is None else f"{row['ttft_p95_ms'] / 1e3:.2f}{'' if compliant(row) else '*'}"


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(words: int, numbers: int) -> str:
    return "|" + "---|" * words + "---:|" * numbers


if __name__ == "__main__":
    main()
