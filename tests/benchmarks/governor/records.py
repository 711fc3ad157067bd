"""Cells of a comparison of server configurations written out, for the tests of what is made of them."""

from pathlib import Path
from typing import Any

from benchmarks.governor.setting import Case
from tests.benchmarks.serving.cells import record as front_record

RAW: dict[str, Any] = {
    "title": "small",
    "cluster": {"prefill": 0, "decode": 1, "router": False, "aggregated": True},
    "profile": "cpu-smollm2-135m",
    "load": {"workload": "LPLD"},
    "rates_rps": [1.0, 2.0],
    "duration_s": 10.0,
    "tbt_slo_ms": 250.0,
    "contenders": ["stock", "fixed-256", "governor", "governor-x0.7"],
}


def case(name: str = "small", **changed: Any) -> Case:
    """A case with some of its settings changed."""
    return Case.of(Path("small.yaml"), name, RAW | changed)


def record(contender: str, rate_rps: float, repeat: int = 0, *, late: int = 0, ttft_s: float = 1.0) -> dict[str, Any]:
    """A cell with so many of 1,000 gaps late, all in the first ten of thirty seconds."""
    found = front_record(contender, rate_rps, repeat, ttft_s=ttft_s)
    engine = {
        "steps": 100,
        "gaps": 1000,
        "violations": late,
        "violation_share": late / 1000,
        "p50_s": 0.1,
        "p95_s": 0.2,
        "p99_s": 0.3,
        "longest_s": 0.4,
        "tpot_attainment": 0.75,
        "windows": [{"from_s": 10.0 * at, "gaps": 100, "violations": 0 if at else late} for at in range(3)],
    }
    return found | {"engine": engine}
