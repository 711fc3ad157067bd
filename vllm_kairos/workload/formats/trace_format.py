"""What a trace format is, what a reader may be told, and the steps that readers share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload, blocks_of
from vllm_kairos.workload.source import Record, Source

TIME_UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
LONGEST_LIKELY_S = 15 * 86400.0
HIGHEST_LIKELY_RPS = 1000.0
LONGEST_LIKELY_MEAN_GAP_S = 600.0
_FEWEST_TO_JUDGE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """What `load_trace` was asked for. Raises WorkloadError naming the option, the rule and the value."""

    limit: int | None = None
    time_unit: str | None = None
    rate_rps: float | None = None
    scv: float = 1.0
    seed: int = 0
    closed_loop: bool = True
    start_s: float | None = None
    duration_s: float = 3600.0
    lengths_path: Path | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise WorkloadError(f"limit must be >= 1, got {self.limit}")
        if self.time_unit is not None and self.time_unit not in TIME_UNITS_PER_S:
            raise WorkloadError(f"time_unit must be one of {', '.join(TIME_UNITS_PER_S)}, got {self.time_unit!r}")

    def units_per_s(self, default: str) -> int:
        """How many of the timestamps' units make a second, `default` being the format's own unit."""
        return TIME_UNITS_PER_S[self.time_unit or default]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """One kind of file: its name, what its rows hold, how to tell it and how to read it."""

    name: str
    columns: str
    matches: Callable[[Record], bool]
    read: Callable[[Source, LoadOptions, Remarks], Iterable[TraceRequest]]


Timed = tuple[float, TraceRequest]
"""A timestamp in its format's own unit and origin, and the request of that row."""


def on_one_clock(timed: list[Timed], units_per_s: int, remarks: Remarks, path: Path) -> list[TraceRequest]:
    """The requests with arrivals in seconds from the earliest one, whatever the timestamps' origin."""
    if not timed:
        raise WorkloadError(f"{path}: must have at least one row, got none")
    late = [later[1] for earlier, later in pairwise(timed) if later[0] < earlier[0]]
    for request in late:
        remarks.add("order", f"{path}: {request.request_id} arrives before the row above it; rows are sorted by arrival")
    origin = min(timestamp for timestamp, _ in timed)
    return [replace(request, arrival_s=(timestamp - origin) / units_per_s) for timestamp, request in timed]


def remark_odd_span(workload: Workload, remarks: Remarks, path: Path) -> None:
    """Warn when the arrivals look like timestamps read in the wrong unit."""
    span_s, gaps = workload.duration_s, len(workload.requests) - 1
    if span_s > LONGEST_LIKELY_S:
        remarks.add("span", f"{path}: arrivals span {span_s / 86400:.0f} days; is the timestamps' unit right?")
    elif gaps + 1 >= _FEWEST_TO_JUDGE and gaps > HIGHEST_LIKELY_RPS * span_s:
        remarks.add("span", f"{path}: {gaps + 1} requests arrive within {span_s:g} s; is the timestamps' unit right?")
    elif gaps + 1 >= _FEWEST_TO_JUDGE and span_s > LONGEST_LIKELY_MEAN_GAP_S * gaps:
        remarks.add("span", f"{path}: arrivals are {span_s / gaps:.0f} s apart on average; is the timestamps' unit right?")


def output_tokens(record: Record, name: str, remarks: Remarks) -> int:
    """The output length in field `name`; a row without output is taken to generate the one token of its prefill."""
    tokens = record.integer(name, least=0)
    if tokens == 0:
        remarks.add("output", f"{record.path}: row {record.row}: {name} is 0, read as 1: a prefill yields a token")
    return max(tokens, 1)


def fitting_hashes(record: Record, name: str, prompt_tokens: int, block_tokens: int, remarks: Remarks) -> tuple[int, ...]:
    """The block ids in field `name`, as many as the prompt has blocks; the prompt's length is never changed to fit."""
    hashes = record.integers(name) if record.values.get(name) is not None else ()
    needed = blocks_of(prompt_tokens, block_tokens)
    if len(hashes) != needed:
        rule = f"a prompt of {prompt_tokens} tokens has {needed} blocks of {block_tokens}"
        kept = f"{min(needed, len(hashes))} are used and the prompt keeps its length"
        remarks.add(f"{name} count", f"{record.path}: row {record.row}: {rule}, {name} has {len(hashes)}; {kept}")
    return hashes[:needed]
