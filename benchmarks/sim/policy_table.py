"""Every policy on slices of four real traces, two profiles and four loads; then `kairos` with its parts ablated.

    python -m benchmarks.sim.policy_table --traces DIR --out benchmarks/results/sim/policy-table.json

DIR holds the traces by project, as docs/workloads.md names them. 2P2D, one seed: the traces are real. The load is
the share of time that the two prefill nodes would be busy if each prompt ran alone, prefix hits aside.
With --rows FILE finished rows are kept there, one a line, and a run that was stopped goes on from them.
Beside the rows, the JSON says where `kairos` is worse than the better of `never` and `always`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine
from benchmarks.sim.ablations import ABLATIONS
from benchmarks.sim.claim import check
from benchmarks.sim.grid import SEED, SLICES, Arm, Cell, mean_execution_s, run_cell
from vllm_kairos.simulate.workers import worker_pool

PROFILES = ("a100-llama3-8b", "h100-llama3.1-8b")
LOADS = (0.3, 0.6, 0.9, 1.1)
POLICIES = (
    "never",
    "always",
    "static-length:2048",
    "dynamo-isl",
    "dynamo-load",
    "llmd-noncached:512",
    "kairos",
    "oracle",
)
ABLATED_PROFILE, ABLATED_LOADS = PROFILES[0], (LOADS[2],)
SATURATED = ("azure-conv", PROFILES[1], LOADS[3])
"""Where all decode slots are taken: the cell that `kairos` is worst at, ablated too."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the grid and write the JSON."""
    options = _options(argv)
    table = _run(list(_cells(options)), options)
    ablated = [] if options.no_ablations else _run(list(_ablated_cells(options)), options)
    document = {
        "benchmark": "policy-table",
        "environment": describe_machine(),
        "cluster": "2P2D, 25 GB/s per node, heartbeat 0.1 s; objectives TTFT 4 s, TBT 70 ms",
        "seed": SEED,
        "slices": {
            name: {"file": one.file, "requests": one.requests, "spread_s": one.spread_s} for name, one in SLICES.items()
        },
        "mean_execution_ms": {
            f"{trace} {profile}": round(mean_execution_s(options.traces, trace, profile) * 1e3, 2)
            for trace in options.trace
            for profile in options.profile
        },
        "claim": check(table),
        "rows": table,
        "ablations": ablated,
    }
    options.out.write_text(_one_row_a_line(document))
    print(json.dumps(document["claim"], indent=1))  # noqa: T201


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--traces", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="JSON lines of finished rows, read and added to")
    parser.add_argument("--known-only", action="store_true", help="write the rows of --rows, run nothing")
    parser.add_argument("--trace", action="append", choices=list(SLICES), help="all")
    parser.add_argument("--profile", action="append", choices=PROFILES, help="all")
    parser.add_argument("--load", action="append", type=float, help="0.3, 0.6, 0.9, 1.1")
    parser.add_argument("--policy", action="append", help="all of the table")
    parser.add_argument("--no-ablations", action="store_true")
    options = parser.parse_args(argv)
    for name, default in (("trace", SLICES), ("profile", PROFILES), ("load", LOADS), ("policy", POLICIES)):
        setattr(options, name, list(getattr(options, name) or default))
    return options


def _cells(options: argparse.Namespace) -> Iterator[Cell]:
    arms = {policy: Arm(spec=policy) for policy in options.policy}
    yield from _grid(options, options.profile, options.load, arms)


def _ablated_cells(options: argparse.Namespace) -> Iterator[Cell]:
    loads = [load for load in options.load if load in ABLATED_LOADS]
    yield from _grid(options, [ABLATED_PROFILE], loads, ABLATIONS)
    trace, profile, load = SATURATED
    if trace in options.trace and profile in options.profile and load in options.load:
        for row, arm in ABLATIONS.items():
            yield Cell(traces=options.traces, trace=trace, profile=profile, load=load, row=row, arm=arm)


def _grid(
    options: argparse.Namespace, profiles: Sequence[str], loads: Sequence[float], arms: Mapping[str, Arm]
) -> Iterator[Cell]:
    for trace in options.trace:
        for profile in profiles:
            for load in loads:
                for row, arm in arms.items():
                    yield Cell(traces=options.traces, trace=trace, profile=profile, load=load, row=row, arm=arm)


def _run(cells: list[Cell], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows in the order of `cells`, those that are known already not run again."""
    known = {_key(row): row for row in _known_rows(options.rows)}
    missing = [] if options.known_only else [cell for cell in cells if _cell_key(cell) not in known]
    with worker_pool(options.workers) as run:
        ran = run(partial(_run_and_show, options.rows), missing, lambda more: None)
    known |= {_key(row): row for row in ran}
    return [known[_cell_key(cell)] for cell in cells if _cell_key(cell) in known]


def _known_rows(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["trace"], row["profile"], row["load"], row["policy"]


def _cell_key(cell: Cell) -> tuple[Any, ...]:
    return cell.trace, cell.profile, cell.load, cell.row


def _run_and_show(rows: Path | None, cell: Cell, tell: Callable[[int], None]) -> dict[str, Any]:
    row = run_cell(cell, tell)
    if rows is not None:
        with rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
    print(  # noqa: T201
        f"{row['trace']:<22}{row['profile']:<18}{row['load']:<5}{row['policy']:<24}P50 {row['ttft_p50_ms']:>9.1f}  "
        f"P95 {row['ttft_p95_ms']:>10.1f}  TBT P95 {row['tbt_p95_ms']:>6.1f}  over {row['violations']:>9.4%}  "
        f"attained {row['attainment']:.3f}  deflected {row['deflected']}/{row['requests']}  {row['cpu_s']} s",
        file=sys.stderr,
        flush=True,
    )
    return row


def _one_row_a_line(document: Mapping[str, Any]) -> str:
    """Indented JSON, but for the two tables."""
    marks = {f"@{key}@": document[key] for key in ("rows", "ablations")}
    text = json.dumps({**document, **{key.strip("@"): key for key in marks}}, indent=2)
    for mark, rows in marks.items():
        lines = ",\n".join("    " + json.dumps(row) for row in rows)
        text = text.replace(f'"{mark}"', f"[\n{lines}\n  ]")
    return text + "\n"


if __name__ == "__main__":
    main()
