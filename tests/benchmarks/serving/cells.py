"""Cells written out, for the tests of what is made of them."""

from typing import Any

from benchmarks.serving.record import Row, cell_figures, failed_cell, measured_cell
from benchmarks.serving.sweep import CellKey
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.replay.sample import Sample
from vllm_kairos.workload.request import TraceRequest

OBJECTIVES = Objectives(ttft_s=4.0, tbt_s=0.07)
MACHINE = {
    "front_cpu_s": 1.0,
    "front_rss_mb": 90.0,
    "servers_cpu_s": 9.0,
    "client_cpu_s": 1.5,
    "others_cpu_s": 0.5,
    "busy_share": 0.4,
    "load_before": 1.0,
    "load_after": 1.5,
}


def row(contender: str, rate_rps: float, repeat: int = 0, **figures: float) -> Row:
    """A flat cell that ran; attains everything with a P95 TTFT of 1 s unless told otherwise."""
    usual = {"ttft_p95_s": 1.0, "tbt_p95_s": 0.05, "slo_attainment": 1.0, "output_tokens_per_s": 100.0}
    place = {"contender": contender, "rate_rps": rate_rps, "repeat": repeat, "status": "ok", "reason": ""}
    return place | usual | figures


def record(contender: str, rate_rps: float, repeat: int = 0, *, ttft_s: float = 1.0) -> dict[str, Any]:
    """A cell's record with two answered requests, as a replay's figures make it."""
    key = CellKey(repeat=repeat, rate_rps=rate_rps, contender=contender)
    samples = [sample(at, ttft_s) for at in (0.0, 0.5)]
    return measured_cell(
        key,
        figures=cell_figures(samples, OBJECTIVES) | {"wall_s": 2.0},
        servers={"counters": {}, "tbt_violations_by_cause": {"deflected": 3.0}},
        front={"ready_s": 1.0},
        machine=dict(MACHINE),
    )


def broken(contender: str, rate_rps: float, repeat: int = 0) -> dict[str, Any]:
    """The record of a cell without figures."""
    return failed_cell(CellKey(repeat=repeat, rate_rps=rate_rps, contender=contender), "it broke")


def sample(due_s: float, ttft_s: float) -> Sample:
    """An answered request of two tokens."""
    request = TraceRequest(request_id=f"r{due_s}", arrival_s=due_s, prompt_tokens=8, output_tokens=2)
    first_s = due_s + ttft_s
    return Sample(
        request=request,
        sent_id=request.request_id,
        due_s=due_s,
        sent_s=due_s,
        ended_s=first_s + 0.05,
        arrivals_s=(first_s, first_s + 0.05),
        output_tokens=2,
    )
