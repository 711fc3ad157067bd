"""A comparison's figures against the simulator's: the same cluster, profile, requests and policy objects.

Run: python -m benchmarks.serving.against_simulator --cells DIR --out FILE

DIR is what benchmarks.serving.compare wrote, its setting included. Ratios are measured over simulated, repeat by
repeat; the limits are those on the median ratio of P50 and P95 TTFT.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.serving.contenders import of_name
from benchmarks.serving.record import Row, check_load, flat, load_all
from benchmarks.serving.setting import Setting
from benchmarks.serving.simulated import shown, simulate
from benchmarks.serving.sweep_flags import add_traces_flag
from vllm_kairos.errors import ConfigError, KairosError
from vllm_kairos.results.json_text import to_json
from vllm_kairos.simulate.figures import Figures

POLICIES = ("never", "kairos")
LIMITS = {"ttft_p50_s": 0.10, "ttft_p95_s": 0.20}
_HEADINGS = ("policy", "req/s", "n", "P50 real", "sim", "ratio", "P95 real", "sim", "ratio", "attained", "sim", "busy")


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table and write JSON; status 1 when a median ratio is out of its limit, 2 for bad input."""
    args = parse(argv)
    try:
        setting = setting_in(args.cells)
        pairs = pairs_of(setting, args.traces, load_all(args.cells / "cells"), args.policies)
    except KairosError as error:
        sys.stderr.write(f"against_simulator: {error}\n")
        return 2
    groups = grouped(pairs)
    document = {
        "command": "python -m benchmarks.serving.against_simulator --cells DIR --out FILE",
        "setting": setting.name,
        "environment": describe_machine(),
        "limits": LIMITS,
        "groups": groups,
        "pairs": pairs,
    }
    sys.stdout.write("\n".join(table(groups)) + "\n")
    if args.out is not None:
        args.out.write_text(to_json(document), encoding="utf-8")
    return 0 if all(all(group["within_limits"].values()) for group in groups) else 1


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=Path, required=True, metavar="DIR", help="the comparison's --out")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="NAME", help="contenders to simulate")
    add_traces_flag(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the JSON goes")
    return parser.parse_args(argv)


def setting_in(folder: Path) -> Setting:
    """The setting that a comparison was run with. Raises ConfigError."""
    path = folder / "comparison.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))["setting"]
    except (OSError, ValueError, LookupError) as error:
        raise ConfigError(f"--cells must hold a comparison.json (compare --report-only writes one), got {error}") from None
    return Setting.of(path, raw)


def pairs_of(
    setting: Setting, traces: Path | None, records: Sequence[dict[str, Any]], policies: Sequence[str]
) -> list[dict[str, Any]]:
    """Every measured cell of these policies beside its twin. Raises ConfigError for none, or one that had other requests."""
    chosen = [record for record in records if record["contender"] in policies and record["status"] == "ok"]
    if not chosen:
        raise ConfigError(f"--cells must hold cells of {', '.join(policies)}, got none")
    for record in chosen:
        check_load(setting, traces, record)
    rows = [flat(record) for record in chosen]
    return [pair(row, simulate(setting, traces, of_name(row["contender"]), row["rate_rps"], row["repeat"])) for row in rows]


def pair(row: Row, twin: Figures) -> dict[str, Any]:
    """One cell: measured and simulated figures, and the ratio of each."""
    simulated = shown(twin)
    measured = {name: row[name] for name in simulated}
    ratios = {name: measured[name] / value for name, value in simulated.items() if value and measured[name] is not None}
    place = {name: row[name] for name in ("contender", "rate_rps", "repeat", "busy_share")}
    return {**place, "measured": measured, "simulated": simulated, "ratios": ratios}


def grouped(pairs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians over repeats of each policy at each rate, and whether they are within limits."""
    keys = sorted({(one["contender"], one["rate_rps"]) for one in pairs})
    return [_group(key, [one for one in pairs if (one["contender"], one["rate_rps"]) == key]) for key in keys]


def _group(key: tuple[str, float], here: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {"contender": key[0], "rate_rps": key[1], "repeats": len(here)}
    for side in ("measured", "simulated", "ratios"):
        names = [name for name in here[0][side] if all(one[side].get(name) is not None for one in here)]
        found[side] = {name: median(one[side][name] for one in here) for name in names}
    found["busy_share"] = median(one["busy_share"] for one in here)
    within = {name: abs(found["ratios"][name] - 1.0) <= limit for name, limit in LIMITS.items() if name in found["ratios"]}
    return found | {"within_limits": within}


def table(groups: Sequence[dict[str, Any]]) -> list[str]:
    """Lines for a terminal; latencies in ms."""
    rows = [list(_HEADINGS), *(_cells(group) for group in groups)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _cells(group: dict[str, Any]) -> list[str]:
    cells = [group["contender"], f"{group['rate_rps']:g}", str(group["repeats"])]
    for name in LIMITS:
        for side in ("measured", "simulated"):
            cells.append(f"{group[side][name] * 1e3:,.0f}" if name in group[side] else "-")
        mark = "" if group["within_limits"].get(name, True) else "!"
        cells.append(f"{group['ratios'][name]:.2f}{mark}" if name in group["ratios"] else "-")
    cells += [f"{group[side]['slo_attainment']:.1%}" for side in ("measured", "simulated")]
    return [*cells, f"{group['busy_share']:.0%}"]


if __name__ == "__main__":
    sys.exit(main())
