"""The demo's summary: one JSON document with every figure, and the table a person reads."""

from statistics import median
from typing import Any

from vllm_kairos.demo.figures import latency_figures
from vllm_kairos.demo.run import DEFLECTING, PLAIN, POLICIES, DemoResult, load_description

SUMMARY_SCHEMA = 1


def make_summary(result: DemoResult, environment: dict[str, Any]) -> dict[str, Any]:
    """Times in seconds, sizes in bytes; `policies` holds the medians over the repeats, `runs` each run."""
    objectives = result.settings.objectives
    runs = [run.figures(objectives) for run in result.runs]
    unloaded = latency_figures(result.unloaded, objectives)
    policies = {policy: _medians([run for run in runs if run["policy"] == policy]) for policy in POLICIES}
    return {
        "schema": SUMMARY_SCHEMA,
        "environment": environment,
        "objectives": {"ttft_s": objectives.ttft_s, "tbt_s": objectives.tbt_s},
        "load": load_description(result.settings),
        "unloaded": {"requests": unloaded["requests"], "errors": unloaded["errors"], "ttft_s": unloaded["ttft_s"]},
        "policies": policies,
        "comparison": _comparison(policies, unloaded),
        "answers": None if result.answers is None else _answers(result),
        "runs": runs,
    }


def table_rows(summary: dict[str, Any]) -> list[tuple[str, ...]]:
    """Heading row first, then one row per figure; times in milliseconds."""
    plain, ours = (summary["policies"][policy] for policy in POLICIES)
    rows: list[tuple[str, ...]] = [("", "plain P/D (never)", "deflection (kairos)")]
    rows += [(label, _shown(plain, *path), _shown(ours, *path)) for label, path in _FIGURES]
    return rows


_FIGURES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("requests", ("requests",)),
    ("errors", ("errors",)),
    ("TTFT p50, ms", ("ttft_s", "p50")),
    ("TTFT p95, ms", ("ttft_s", "p95")),
    ("TTFT mean, ms", ("ttft_s", "mean")),
    ("TBT p50, ms", ("tbt_s", "p50")),
    ("TBT p95, ms", ("tbt_s", "p95")),
    ("TBT p99, ms", ("tbt_s", "p99")),
    ("TBT violations", ("tbt_violation_share",)),
    ("SLO attainment", ("slo_attainment",)),
    ("deflected", ("deflected",)),
    ("KV transfers", ("transfers",)),
    ("KV transfers skipped", ("transfers_skipped",)),
    ("KV MB moved", ("transferred_bytes",)),
    ("KV MB skipped", ("transfer_bytes_skipped",)),
    ("TTFT prediction error, kept", ("ttft_prediction", "kept", "median_relative_error")),
    ("TTFT prediction error, deflected", ("ttft_prediction", "deflected", "median_relative_error")),
)


def _shown(figures: dict[str, Any], *path: str) -> str:
    value: Any = figures
    for key in path:
        value = value[key]
    if value is None:
        return "-"
    if path[0] in ("ttft_s", "tbt_s"):
        return f"{value * 1e3:,.0f}"
    if path[-1].endswith(("_share", "_error")) or path[-1] == "slo_attainment":
        return f"{value:.1%}"
    return f"{value / 1e6:,.1f}" if "bytes" in path[-1] else f"{value:g}"


def _medians(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Number by number over the runs; of texts and lists, the first run's."""
    first = runs[0]
    return {key: _median_of([run.get(key) for run in runs]) for key in first if key not in ("policy", "repeat")}


def _median_of(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _median_of([value.get(key) for value in values]) for key in keys}
    numbers = [value for value in values if isinstance(value, (int, float))]
    return median(numbers) if numbers else first


def _comparison(policies: dict[str, Any], unloaded: dict[str, Any]) -> dict[str, Any]:
    plain_s, ours_s = policies[PLAIN]["ttft_s"]["p95"], policies[DEFLECTING]["ttft_s"]["p95"]
    idle_s = unloaded["ttft_s"]["p95"]
    return {
        "plain_p95_ttft_over_unloaded": round(plain_s / idle_s, 3) if plain_s and idle_s else None,
        "deflection_p95_ttft_over_plain": round(ours_s / plain_s, 3) if plain_s and ours_s else None,
    }


def _answers(result: DemoResult) -> dict[str, Any]:
    check = result.answers
    assert check is not None
    return {
        "prompts": check.prompts,
        "ways": check.paths,
        "identical": check.identical,
        "first_difference": check.first_difference,
    }
