"""Read a trace file into a workload."""

from pathlib import Path

from vllm_kairos.workload.formats.registry import AUTO, format_of
from vllm_kairos.workload.formats.trace_format import LoadOptions, remark_odd_span
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import Workload
from vllm_kairos.workload.source import Source


def load_trace(
    path: str | Path,
    *,
    format: str = AUTO,
    limit: int | None = None,
    time_unit: str | None = None,
) -> Workload:
    """Every row of a trace file, plain or gzipped, as a workload named after the file; the earliest arrives at 0 s.

    `limit` takes the file's first rows. `time_unit` (s, ms, us, ns) overrides the unit of a format's numeric
    timestamps. Raises WorkloadError naming the file, row, field, rule and value.
    """
    source, remarks = Source(Path(path)), Remarks()
    options = LoadOptions(limit=limit, time_unit=time_unit)
    requests = format_of(source, format).read(source, options, remarks)
    workload = Workload.in_time_order(_name(source.path), requests)
    remark_odd_span(workload, remarks, source.path)
    return Workload(name=workload.name, requests=workload.requests, warnings=remarks.lines())


def _name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv").removesuffix(".jsonl")
