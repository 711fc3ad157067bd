"""Every trace format by name, and which of them a file is."""

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.formats import (
    azure,
    claude_code,
    dynamo_agent,
    kairos,
    lengths,
    mooncake,
    servegen_sample,
    servegen_windows,
)
from vllm_kairos.workload.formats.trace_format import TraceFormat
from vllm_kairos.workload.source import Source

_MODULES = (azure, mooncake, claude_code, dynamo_agent, servegen_sample, servegen_windows, lengths, kairos)
FORMATS: dict[str, TraceFormat] = {module.FORMAT.name: module.FORMAT for module in _MODULES}
AUTO = "auto"


def format_of(source: Source, name: str = AUTO) -> TraceFormat:
    """The format called `name`, or the one that the file's header or first object shows. Raises WorkloadError."""
    if name == AUTO:
        return _detected(source)
    if name not in FORMATS:
        raise WorkloadError(f"format must be {AUTO} or one of {', '.join(FORMATS)}, got {name!r}")
    return FORMATS[name]


def _detected(source: Source) -> TraceFormat:
    first = source.first_record()
    for known in FORMATS.values():
        if known.matches(first):
            return known
    listed = "".join(f"\n  {known.name}: {known.columns}" for known in FORMATS.values())
    raise WorkloadError(f"{source.path}: must be of a known format, got fields {list(first.values)[:12]}; known are:{listed}")
