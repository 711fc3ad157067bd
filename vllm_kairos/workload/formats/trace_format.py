"""What a trace format is, what a reader may be told, and the steps that readers share."""

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
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
    read: Callable[[Source, LoadOptions, Remarks], Workload]
    draws_arrivals: bool = False
    """The file has no common clock: arrivals are drawn at `LoadOptions.rate_rps`."""


Timed = tuple[float, TraceRequest]
"""A timestamp in its format's own unit and origin, and the request of that row."""


def on_one_clock(source: Source, timed: list[Timed], units_per_s: int, remarks: Remarks) -> Workload:
    """The rows as a workload whose earliest request arrives at 0 s, whatever the timestamps' origin."""
    some_rows(source, timed)
    for (earlier, _), (later, request) in pairwise(timed):
        if later < earlier:
            remarks.add("order", f"{source.path}: {request.request_id} arrives before the row above it: rows were sorted")
    origin = min(timestamp for timestamp, _ in timed)
    requests = (replace(request, arrival_s=(timestamp - origin) / units_per_s) for timestamp, request in timed)
    workload = Workload.in_time_order(source.name, requests)
    _remark_odd_span(workload, remarks, source)
    return workload


def some_rows(source: Source, rows: Sized) -> None:
    """Raise WorkloadError when there is no row."""
    if not rows:
        raise WorkloadError(f"{source.path}: must have at least one request, got none")


def _remark_odd_span(workload: Workload, remarks: Remarks, source: Source) -> None:
    """Warn when the arrivals look like timestamps read in the wrong unit."""
    span_s, count = workload.duration_s, len(workload.requests)
    question = "is the timestamps' unit right?"
    if span_s > LONGEST_LIKELY_S:
        remarks.add("span", f"{source.path}: arrivals span {span_s / 86400:.0f} days; {question}")
    elif count >= _FEWEST_TO_JUDGE and count > HIGHEST_LIKELY_RPS * span_s:
        remarks.add("span", f"{source.path}: {count} requests arrive within {span_s:g} s; {question}")
    elif count >= _FEWEST_TO_JUDGE and span_s > LONGEST_LIKELY_MEAN_GAP_S * count:
        remarks.add("span", f"{source.path}: arrivals are {span_s / count:.0f} s apart on average; {question}")


def needed_rate_rps(source: Source, options: LoadOptions, what: str) -> float:
    """The rate to draw arrivals at. Raises WorkloadError when none was given."""
    if options.rate_rps is None:
        raise WorkloadError(f"{source.path}: rate_rps, {what} per second, must be given: the file has no arrival times")
    return options.rate_rps


def output_tokens(record: Record, name: str, remarks: Remarks) -> int:
    """The output length in field `name`; a row without output is taken to generate the one token of its prefill."""
    tokens = record.integer(name, least=0)
    if tokens == 0:
        remarks.add("output", f"{record.path}: row {record.row}: {name} is 0, read as 1: a prefill yields a token")
    return max(tokens, 1)


def fitting_hashes(record: Record, name: str, prompt_tokens: int, blocks: int, remarks: Remarks) -> tuple[int, ...]:
    """The block ids in field `name`, at most the `blocks` that the prompt has; its length is never changed to fit."""
    hashes = record.integers(name) if record.has(name) else ()
    if len(hashes) != blocks:
        fault = f"input of {prompt_tokens} tokens has {blocks} hash blocks and {name} holds {len(hashes)}"
        effect = f"the first {min(blocks, len(hashes))} are used, the prompt keeps its length"
        remarks.add(name, f"{record.path}: row {record.row}: {fault}; {effect}")
    return hashes[:blocks]
