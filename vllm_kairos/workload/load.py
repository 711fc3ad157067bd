"""Read a trace file into a workload."""

from dataclasses import replace
from pathlib import Path

from vllm_kairos.workload.formats.registry import AUTO, format_of
from vllm_kairos.workload.formats.trace_format import LoadOptions
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import Workload
from vllm_kairos.workload.source import Source
from vllm_kairos.workload.transforms import at_rate


def load_trace(
    path: str | Path,
    *,
    format: str = AUTO,
    limit: int | None = None,
    time_unit: str | None = None,
    rate_rps: float | None = None,
    scv: float = 1.0,
    seed: int = 0,
    closed_loop: bool = True,
    start_s: float | None = None,
    duration_s: float = 3600.0,
    lengths_path: str | Path | None = None,
) -> Workload:
    """Every request of a trace file, plain or gzipped, as a workload named after the file; the earliest is at 0 s.

    Args:
        format: one of `formats.registry.FORMATS`, or told by the file's header or first object.
        limit: take the first requests only, in the file's order.
        time_unit: s, ms, us or ns, overrides the unit of numeric timestamps.
        rate_rps: mean arrivals per second. Recorded arrivals are scaled to it; where the file has none they are drawn
            at it (for sessions: their starts), and for ServeGen's windows all clients' rates are scaled to it.
        scv: squared coefficient of variation of drawn gaps: 1 is Poisson, 0 even, other values Gamma.
        seed: of everything that is drawn.
        closed_loop: requests of a session wait for each other; else they arrive at their recorded times.
        start_s, duration_s: the span of ServeGen's windows to draw; None starts with the busiest span.
        lengths_path: the lengths beside ServeGen's windows; None finds it by name.

    Raises WorkloadError naming the file, row, field, rule and value.
    """
    options = LoadOptions(
        limit=limit,
        time_unit=time_unit,
        rate_rps=rate_rps,
        scv=scv,
        seed=seed,
        closed_loop=closed_loop,
        start_s=start_s,
        duration_s=duration_s,
        lengths_path=None if lengths_path is None else Path(lengths_path),
    )
    remarks = Remarks()
    with Source(Path(path)) as source:
        known = format_of(source, format)
        workload = known.read(source, options, remarks)
    if rate_rps is not None and not known.draws_arrivals:
        workload = at_rate(workload, rate_rps)
    return replace(workload, warnings=(*workload.warnings, *remarks.lines()))


def draws_arrivals(path: str | Path, format: str = AUTO) -> bool:
    """Whether the file's format has no arrival times of its own. Raises WorkloadError."""
    with Source(Path(path)) as source:
        return format_of(source, format).draws_arrivals
