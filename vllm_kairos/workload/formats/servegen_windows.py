"""ServeGen's client models: rates and gap laws per client and window, lengths per client and part of the day.

The trace is drawn, not recorded. Prompt and output lengths are drawn independently of each other, as the model gives
them, so their correlation within a client is lost.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from random import Random
from typing import Any, Literal, cast

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.arrivals import MOST_SHAPE
from vllm_kairos.workload.formats.trace_format import LoadOptions, TraceFormat, some_rows
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.renewal import WINDOW_S, Window, client_arrivals_s
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

MOST_REQUESTS = 2_000_000
_COLUMNS = ("client_id", "window_start_s", "rate_rps", "pattern", "shape")
_LEAST_SHAPE = {"Gamma": 1e-3, "Weibull": 0.15}  # burstier laws put nearly all of their arrivals at one instant

Client = str
Windows = Mapping[Client, Sequence[Window]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lengths:
    """A client's token counts in one part of the day, with cumulative weights."""

    start_s: float
    prompts: tuple[list[int], list[float]]
    outputs: tuple[list[int], list[float]]

    def draw(self, rng: Random) -> tuple[int, int]:
        prompt, output = (rng.choices(tokens, cum_weights=upto)[0] for tokens, upto in (self.prompts, self.outputs))
        return prompt, output


def _matches(first: Record) -> bool:
    return set(_COLUMNS) <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    if options.duration_s <= 0 or options.duration_s % WINDOW_S:
        raise WorkloadError(f"duration_s must be a multiple of {WINDOW_S:g}, the windows' length, got {options.duration_s}")
    with Source(options.lengths_path or _lengths_beside(source)) as beside:
        lengths = _lengths(beside, remarks)
    windows = _with_lengths(source, _windows(source), lengths, remarks)
    chosen = _between(windows, _start_s(windows, options), options.duration_s)
    expected = sum(window.rate_rps * WINDOW_S for of_client in chosen.values() for window in of_client)
    if not expected:
        raise WorkloadError(f"{source.path}: start_s must be within the file's windows, got {options.start_s}")
    speed = 1.0 if options.rate_rps is None else options.rate_rps * options.duration_s / expected
    if expected * speed > MOST_REQUESTS:
        rule = f"rate_rps or duration_s must be set so that at most {MOST_REQUESTS} requests are drawn"
        raise WorkloadError(f"{source.path}: {rule}, got {expected * speed:.0f}")
    arrivals = sorted(
        (arrival_s, client)
        for client, of_client in chosen.items()
        for arrival_s in client_arrivals_s(of_client, speed, Random(f"{options.seed}/{client}/arrivals"))
    )
    some_rows(source, arrivals)
    return _workload(source.name, islice(arrivals, options.limit), lengths, options.seed)


def _workload(
    name: str, arrivals: Iterable[tuple[float, Client]], lengths: Mapping[Client, Sequence[_Lengths]], seed: int
) -> Workload:
    rngs: dict[Client, Random] = {}
    requests: list[TraceRequest] = []
    origin_s: float | None = None
    for index, (arrival_s, client) in enumerate(arrivals):
        origin_s = arrival_s if origin_s is None else origin_s
        rng = rngs.setdefault(client, Random(f"{seed}/{client}/lengths"))
        prompt_tokens, output_tokens = _at(lengths[client], arrival_s).draw(rng)
        requests.append(
            TraceRequest(
                request_id=f"client-{client}/{index}",
                arrival_s=arrival_s - origin_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
            )
        )
    return Workload(name=name, requests=tuple(requests))


def _windows(source: Source) -> Windows:
    windows: defaultdict[Client, list[Window]] = defaultdict(list)
    for record in source.csv_records():
        windows[record.text("client_id")].append(_window(record))
    some_rows(source, windows)
    return {client: sorted(of_client, key=lambda window: window.start_s) for client, of_client in windows.items()}


def _window(record: Record) -> Window:
    family = record.text("pattern")
    if family not in _LEAST_SHAPE:
        raise record.error("pattern", f"one of {', '.join(_LEAST_SHAPE)}")
    return Window(
        start_s=record.number("window_start_s"),
        rate_rps=record.number("rate_rps"),
        family=cast(Literal["Gamma", "Weibull"], family),
        shape=record.number("shape", least=_LEAST_SHAPE[family], most=MOST_SHAPE),
    )


def _with_lengths(source: Source, windows: Windows, lengths: Mapping[Client, Any], remarks: Remarks) -> Windows:
    known = {client: of_client for client, of_client in windows.items() if client in lengths}
    if not known:
        raise WorkloadError(f"{source.path}: at least one client must have lengths, got none of {len(windows)}")
    if len(known) < len(windows):
        share = _requests(known) / _requests(windows)
        fault = f"{len(windows) - len(known)} of {len(windows)} clients have no lengths and are left out"
        remarks.add("clients", f"{source.path}: {fault}; those kept send {share:.0%} of the requests")
    return known


def _requests(windows: Windows) -> float:
    return sum(window.rate_rps for of_client in windows.values() for window in of_client)


def _start_s(windows: Windows, options: LoadOptions) -> float:
    """The start asked for, or that of the busiest span of `duration_s`."""
    if options.start_s is not None:
        return options.start_s
    starts = sorted({window.start_s for of_client in windows.values() for window in of_client})
    return max(starts, key=lambda start_s: _requests(_between(windows, start_s, options.duration_s)))


def _between(windows: Windows, start_s: float, duration_s: float) -> Windows:
    end_s = start_s + duration_s
    return {
        client: [window for window in of_client if start_s <= window.start_s < end_s] for client, of_client in windows.items()
    }


def _lengths_beside(source: Source) -> Path:
    if "_windows" not in source.path.name:
        raise WorkloadError(f"{source.path}: lengths_path must be given: the file's name has no _windows to replace")
    stem = source.path.name.partition("_windows")[0]
    plain = source.path.with_name(f"{stem}_lengths.jsonl")
    return plain if plain.exists() else plain.with_name(f"{plain.name}.gz")


def _lengths(source: Source, remarks: Remarks) -> dict[Client, list[_Lengths]]:
    lengths: defaultdict[Client, list[_Lengths]] = defaultdict(list)
    for record in source.json_records():
        part = _Lengths(
            start_s=record.number("t"),
            prompts=_weights(record, "input_tokens", least=1),
            outputs=_weights(record, "output_tokens", least=0),
        )
        lengths[str(record.integer("client_id", least=0))].append(part)
    return {client: sorted(parts, key=lambda part: part.start_s) for client, parts in lengths.items()}


def _weights(record: Record, name: str, *, least: int) -> tuple[list[int], list[float]]:
    """Token counts of at least 1 with their cumulative weights; an output of 0 counts as the prefill's one token."""
    table = record.inner(name)
    try:
        tokens = [int(count) for count in table.values]
    except ValueError:
        raise record.error(name, "an object from token counts to probabilities") from None
    if not tokens or min(tokens) < least:
        raise record.error(name, f"an object from token counts >= {least} to probabilities")
    upto = list(accumulate(table.number(count) for count in table.values))
    if upto[-1] <= 0:
        raise record.error(name, "an object with a probability > 0")
    return [max(count, 1) for count in tokens], upto


def _at(parts: Sequence[_Lengths], at_s: float) -> _Lengths:
    """The part of the day that holds `at_s`, or the first one."""
    return parts[max(bisect_right(parts, at_s, key=lambda part: part.start_s) - 1, 0)]


FORMAT = TraceFormat(
    name="servegen-windows",
    columns=f"CSV with {', '.join(_COLUMNS)}, beside a JSON-lines file of lengths",
    matches=_matches,
    read=_read,
    draws_arrivals=True,
)
