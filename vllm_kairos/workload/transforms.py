"""Workloads made from workloads: faster, shorter, smoother, limited. Each returns a copy; the first request is at 0 s.

A workload with closed-loop sessions keeps them whole: where a request is dropped, its successor waits for the one
before it instead, and where that one is gone too the successor arrives by the clock.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Any, Literal

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.arrivals import arrival_times_s
from vllm_kairos.workload.request import TraceRequest, Workload, blocks_of

LEAST_SPAN_S = 1e-6


def scaled(workload: Workload, factor: float) -> Workload:
    """All gaps divided by `factor`, think times too: 2 is twice the rate."""
    _require("factor", factor, isfinite(factor) and factor > 0, "a finite number > 0")
    origin_s = workload.requests[0].arrival_s
    moved = (
        replace(request, arrival_s=(request.arrival_s - origin_s) / factor, think_s=request.think_s / factor)
        for request in workload.requests
    )
    return replace(workload, requests=tuple(moved))


def at_rate(workload: Workload, requests_per_s: float) -> Workload:
    """Scaled so that requests arrive at this mean rate; those that wait for another one do not count."""
    _require("requests_per_s", requests_per_s, isfinite(requests_per_s) and requests_per_s > 0, "a finite number > 0")
    return scaled(workload, requests_per_s / mean_rate_rps(workload))


def mean_rate_rps(workload: Workload) -> float:
    """Arrivals by the clock per second, (n - 1) / span. Raises WorkloadError when the span is under `LEAST_SPAN_S`."""
    arrivals = [request.arrival_s for request in workload.requests if not request.after]
    span_s = arrivals[-1] - arrivals[0]
    if span_s < LEAST_SPAN_S:
        raise WorkloadError(f"workload {workload.name!r}: arrivals must span >= {LEAST_SPAN_S:g} s, got {span_s:g}")
    return (len(arrivals) - 1) / span_s


def sliced(workload: Workload, start_s: float, duration_s: float) -> Workload:
    """The requests that arrive in [start_s, start_s + duration_s). Raises WorkloadError when there is none."""
    _require("start_s", start_s, isfinite(start_s) and start_s >= 0, "a finite number >= 0")
    _require("duration_s", duration_s, duration_s > 0, "> 0")
    kept = _kept(workload, lambda request: start_s <= request.arrival_s < start_s + duration_s)
    return _from_start(workload, kept)


def first(workload: Workload, n: int) -> Workload:
    """The first `n` requests, or all when there are fewer."""
    _require("n", n, n >= 1, ">= 1")
    return replace(workload, requests=workload.requests[:n])


def capped_gaps(workload: Workload, most_s: float) -> Workload:
    """No gap between arrivals, and no think time, longer than `most_s`."""
    _require("most_s", most_s, isfinite(most_s) and most_s >= 0, "a finite number >= 0")
    arrival_s, arrivals = 0.0, [0.0]
    for earlier, later in pairwise(workload.requests):
        arrival_s += min(later.arrival_s - earlier.arrival_s, most_s)
        arrivals.append(arrival_s)
    moved = (
        replace(request, arrival_s=arrival_s, think_s=min(request.think_s, most_s))
        for request, arrival_s in zip(workload.requests, arrivals, strict=True)
    )
    return replace(workload, requests=tuple(moved))


def spread(workload: Workload, slot_s: float, seed: int) -> Workload:
    """Every request moved later by a uniform part of `slot_s`: undoes timestamps that were rounded down to slots.

    A request that waits for another one is moved only as far as keeps it from preceding that one.
    """
    _require("slot_s", slot_s, isfinite(slot_s) and slot_s >= 0, "a finite number >= 0")
    rng, moved_s = Random(f"{seed}/spread"), dict[str, float]()
    for request in workload.requests:
        offset_s = 0.0 if request.after else rng.random() * slot_s
        moved_s[request.request_id] = max(request.arrival_s + offset_s, moved_s.get(request.after, 0.0))
    moved = (replace(request, arrival_s=moved_s[request.request_id]) for request in workload.requests)
    return _from_start(workload, moved)


def with_arrivals(workload: Workload, *, rate_rps: float, scv: float = 1.0, seed: int) -> Workload:
    """The same requests in the same order at drawn times: gaps of mean 1 / rate_rps, Gamma of the given `scv`.

    A request that waits for another one may arrive from that one's arrival on.
    """
    clocked = sum(not request.after for request in workload.requests)
    drawn = iter(arrival_times_s(clocked, rate_rps=rate_rps, scv=scv, rng=Random(f"{seed}/arrivals")))
    moved_s: dict[str, float] = {}
    for request in workload.requests:
        moved_s[request.request_id] = moved_s[request.after] if request.after else next(drawn)
    moved = (replace(request, arrival_s=moved_s[request.request_id]) for request in workload.requests)
    return _from_start(workload, moved)


def with_prompt_limit(workload: Workload, max_tokens: int, how: Literal["clip", "drop"]) -> Workload:
    """Prompts longer than `max_tokens` cut to it, or their requests dropped; a warning says how many."""
    _require("max_tokens", max_tokens, max_tokens >= 1, ">= 1")
    longer = sum(request.prompt_tokens > max_tokens for request in workload.requests)
    if not longer:
        return workload
    warning = f"{longer} of {len(workload.requests)} prompts are over {max_tokens} tokens: {_DONE_BY.get(how)}"
    if how == "clip":
        limited = replace(workload, requests=tuple(_clipped(request, max_tokens) for request in workload.requests))
    elif how == "drop":
        limited = _from_start(workload, _kept(workload, lambda request: request.prompt_tokens <= max_tokens))
    else:
        raise WorkloadError(f"how must be clip or drop, got {how!r}")
    return replace(limited, warnings=(*workload.warnings, warning))


_DONE_BY = {"clip": "cut to that length", "drop": "dropped"}


def with_slo(
    workload: Workload,
    *,
    ttft_slo_s: float | None = None,
    tbt_slo_s: float | None = None,
    tpot_slo_s: float | None = None,
) -> Workload:
    """The objectives given on every request; None leaves a request's own."""
    objectives: dict[str, Any] = {"ttft_slo_s": ttft_slo_s, "tbt_slo_s": tbt_slo_s, "tpot_slo_s": tpot_slo_s}
    given = {name: value for name, value in objectives.items() if value is not None}
    return replace(workload, requests=tuple(replace(request, **given) for request in workload.requests))


def _clipped(request: TraceRequest, max_tokens: int) -> TraceRequest:
    if request.prompt_tokens <= max_tokens:
        return request
    hashes = request.block_hashes[: blocks_of(max_tokens, request.block_tokens)] if request.block_tokens else ()
    return replace(request, prompt_tokens=max_tokens, block_hashes=hashes)


def _kept(workload: Workload, keep: Callable[[TraceRequest], bool]) -> list[TraceRequest]:
    """The requests to keep, each waiting for the nearest kept one before it in its session."""
    stand_in: dict[str, str] = {}
    kept = []
    for request in workload.requests:
        after = stand_in.get(request.after, request.after)
        if keep(request):
            kept.append(replace(request, after=after, think_s=request.think_s if after else 0.0))
        else:
            stand_in[request.request_id] = after
    return kept


def _from_start(workload: Workload, requests: Iterable[TraceRequest]) -> Workload:
    """A copy of `workload` with these requests, in time order, the first at 0 s."""
    ordered = Workload.in_time_order(workload.name, requests, workload.warnings)
    origin_s = ordered.requests[0].arrival_s
    moved = tuple(replace(request, arrival_s=request.arrival_s - origin_s) for request in ordered.requests)
    return replace(ordered, requests=moved)


def _require(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise WorkloadError(f"{name} must be {rule}, got {value}")
