"""results.json and summary.csv: everything about a sweep, the same bytes for the same input."""

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy

from vllm_kairos import __version__
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.results.json_text import plain
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.figures import flat
from vllm_kairos.simulate.request_rows import COLUMNS
from vllm_kairos.simulate.sweep import CellResult
from vllm_kairos.workload.describe import Description

RESULTS_SCHEMA = 1


def results_document(
    command: str, config: SimulateConfig, description: Description, warnings: Sequence[str], results: Iterable[CellResult]
) -> dict[str, Any]:
    """The document; times in seconds, sizes in bytes and tokens. No wall-clock time is in it."""
    return {
        "schema": RESULTS_SCHEMA,
        "command": command,
        "environment": environment(config),
        "config": config.as_json(),
        "workload": asdict(description),
        "workload_warnings": list(warnings),
        "results": [result_json(result) for result in results],
    }


def result_json(result: CellResult) -> dict[str, Any]:
    """One cell."""
    place = {"policy": result.policy, "rate_rps": result.rate_rps, "seed": result.seed}
    return place | {"figures": result.figures.as_json()}


def environment(config: SimulateConfig) -> dict[str, Any]:
    """Versions and profiles that the figures depend on; names no host and no path."""
    cluster = config.cluster
    chosen = {"prefill": cluster.prefill_profile or cluster.profile, "decode": cluster.decode_profile or cluster.profile}
    return {
        "kairos_version": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "machine": platform.machine(),
        "profiles": {role: _profile(name) for role, name in chosen.items()},
    }


def _profile(name: str) -> dict[str, Any]:
    profile = load_profile(resolve_profile(name))
    return {
        "hardware": profile.hardware,
        "model": profile.model,
        "note": profile.note,
        "mape": {part: accuracy.mape for part, accuracy in profile.accuracy.items()},
    }


def summary_csv(results: Iterable[CellResult]) -> str:
    """One row per cell, one column per figure; a figure that only some cells have is empty in the others."""
    rows = [flat(result_json(result)) for result in results]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _csv(columns, ([row.get(name) for name in columns] for row in rows))


def requests_csv(results: Iterable[CellResult]) -> str:
    """One row per request and cell."""
    columns = ("policy", "rate_rps", "seed", *COLUMNS)
    return _csv(columns, ((one.policy, one.rate_rps, one.seed, *row) for one in results for row in one.rows))


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain(value) for value in row] for row in rows)
    return text.getvalue()
