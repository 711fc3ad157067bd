"""A cell's record: what its JSON file holds, and the flat row that tables are made of."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.serving.servers import gaps_counted, lease_counts
from benchmarks.serving.setting import Setting, workload_of
from benchmarks.serving.sweep import CellKey
from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.figures import Objectives, Quantiles, figures_of
from vllm_kairos.replay.open_loop import INTERRUPTED
from vllm_kairos.replay.sample import Sample
from vllm_kairos.results.json_text import to_json
from vllm_kairos.workload.request import Workload

SCHEMA = 1
_UNANSWERED = "unanswered"
Row = dict[str, Any]
"""One cell flat: contender, rate_rps, repeat, status, and figures; times in seconds, shares of 1."""

_QUANTILES = {"ttft": "ttft_s", "tbt": "tbt_s", "tpot": "tpot_s"}
_COPIED = (
    "requests",
    "failed",
    "unanswered",
    "ttft_violations",
    "slo_attainment",
    "ttft_attainment",
    "tbt_attainment",
    "tbt_violations",
    "tbt_violation_share",
    "goodput_rps",
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "offered_rps",
    "deflected",
    "cached_tokens",
    "wall_s",
)
_MACHINE = (
    "front_cpu_s",
    "front_rss_mb",
    "servers_cpu_s",
    "client_cpu_s",
    "others_cpu_s",
    "busy_share",
    "load_before",
    "load_after",
)


def measured_cell(key: CellKey, **parts: Any) -> dict[str, Any]:
    """The record of a cell that ran to its end, whatever became of its requests."""
    return {"schema": SCHEMA, **asdict(key), "status": "ok", "reason": "", **parts}


def failed_cell(key: CellKey, reason: str) -> dict[str, Any]:
    """The record of a cell that gave no figures."""
    return {"schema": SCHEMA, **asdict(key), "status": "failed", "reason": reason}


def cell_figures(samples: Sequence[Sample], objectives: Objectives, client_lags_s: Sequence[float] = ()) -> dict[str, Any]:
    """A replay's figures, of one that may have been cut short once every request was sent.

    What was then unanswered attains nothing, and its TTFT counts as what it had waited where no token had come: a
    quantile that it enters is a lower bound. It is `unanswered`, not `failed`.
    """
    ended = [replace(one, error=_UNANSWERED) if one.error == INTERRUPTED else one for one in samples]
    figures = figures_of(ended, objectives, client_lags_s=client_lags_s)
    unanswered = figures.errors.get(_UNANSWERED, 0)
    if unanswered:
        waited = (_waited_s(one) for one in ended if one.ok or one.error == _UNANSWERED)
        figures = replace(figures, failed=figures.failed - unanswered, ttft_s=Quantiles.of(waited))
    violations = sum(not objectives.ttft_met(one) for one in ended)
    return figures.as_json() | {"unanswered": unanswered, "ttft_violations": violations}


def _waited_s(sample: Sample) -> float:
    return sample.ended_s - sample.due_s if sample.ttft_s is None else sample.ttft_s


def load_summary(workload: Workload) -> dict[str, Any]:
    """What was sent; equal `fingerprint` is equal arrivals and lengths."""
    shapes = [(round(one.arrival_s, 6), one.prompt_tokens, one.output_tokens, one.block_hashes) for one in workload.requests]
    return {
        "requests": len(shapes),
        "prompt_tokens": sum(shape[1] for shape in shapes),
        "output_tokens": sum(shape[2] for shape in shapes),
        "duration_s": workload.requests[-1].arrival_s,
        "fingerprint": sha256(repr(shapes).encode()).hexdigest()[:16],
        "warnings": list(workload.warnings),
    }


def check_load(setting: Setting, traces: Path | None, record: Mapping[str, Any]) -> None:
    """Raise ConfigError when a cell had other requests than the setting means."""
    if "load" not in record:
        return  # the servers failed before there were any
    expected = load_summary(workload_of(setting, traces, record["rate_rps"], record["repeat"]))["fingerprint"]
    if record["load"]["fingerprint"] != expected:
        place = f"{record['contender']} at {record['rate_rps']:g} requests/s, repeat {record['repeat']}"
        raise ConfigError(f"cells: {place}: its requests must be those of the setting {setting.name}, got others")


def flat(record: Mapping[str, Any]) -> Row:
    """The record as a row; figures are missing where the cell failed."""
    row: Row = {name: record[name] for name in ("contender", "rate_rps", "repeat", "status", "reason")}
    if record["status"] != "ok":
        return row
    figures, servers = record["figures"], record["servers"]
    for name, key in _QUANTILES.items():
        row |= {f"{name}_{rank}_s": figures[key][rank] for rank in ("p50", "p95", "p99", "mean")}
    row |= {name: figures[name] for name in _COPIED}
    row["gaps"] = figures["tbt_s"]["count"]
    row["deflected_share"] = figures["deflected"] / figures["requests"] if figures["requests"] else 0.0
    row |= {f"{name}_p99_s": figures[f"{name}_s"]["p99"] for name in ("send_lag", "client_lag")}
    row |= {name: record["machine"][name] for name in _MACHINE}
    row["engine_gaps"] = gaps_counted(servers["counters"])
    row |= {f"violations_{cause}": count for cause, count in servers["tbt_violations_by_cause"].items()}
    return row | lease_counts(servers["counters"])


def save(record: Mapping[str, Any], path: Path) -> None:
    """Write it whole or not at all, so that a sweep that is cut off leaves no half file."""
    draft = path.with_suffix(".part")
    draft.write_text(to_json(record), encoding="utf-8")
    draft.replace(path)


def load_all(folder: Path) -> list[dict[str, Any]]:
    """Every cell's record in the folder, in name order. Raises ConfigError naming the file that is none."""
    return [load_one(path) for path in sorted(folder.glob("*.json"))]


def load_one(path: Path) -> dict[str, Any]:
    """One cell's record. Raises ConfigError naming the file where it is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise TypeError(f"a JSON {type(found).__name__}")
        if "status" in found:  # of a comparison
            flat(found)
    except (OSError, ValueError, RecursionError, LookupError, AttributeError, TypeError) as error:
        rule = "must be a cell's record, whole and of this version; without the file the cell is run again"
        raise ConfigError(f"{path}: {rule}, got {type(error).__name__}: {error}") from None
    return found


def columns(rows: Iterable[Row]) -> list[str]:
    """Every name that occurs, in order of first occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row))
