"""The workload that is replayed: read or drawn, cut, smoothed, and set to its pace."""

from math import inf
from typing import Literal

from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.schedule import ramped_s
from vllm_kairos.replay.settings import LoadSettings
from vllm_kairos.workload import generate, load_trace, transforms
from vllm_kairos.workload.load import draws_arrivals
from vllm_kairos.workload.request import Workload

MOST_TOKENS = 10_000_000


def build_workload(settings: LoadSettings) -> Workload:
    """The requests with their moments at the pace asked for; the ramp is left to the replay.

    Raises ConfigError or WorkloadError.
    """
    workload = _paced(_shaped(_taken(settings), settings), settings)
    _check_lengths(workload)
    workload = transforms.with_slo(workload, ttft_slo_s=_seconds(settings.ttft_slo_ms), tbt_slo_s=_seconds(settings.tbt_slo_ms))
    last_s = ramped_s(workload.requests[-1].arrival_s, settings.ramp_s)
    if settings.ramp_s and not settings.ramp_s <= last_s < inf:
        rule = f"short enough that requests are left after it, the last being due at {last_s:.1f} s"
        raise ConfigError(f"--ramp-s must be {rule}, got {settings.ramp_s:g}")
    return workload


def _check_lengths(workload: Workload) -> None:
    """Refuse prompts that this process could not hold: a trace's lengths may be anything."""
    for request in workload.requests:
        if max(request.prompt_tokens, request.output_tokens) > MOST_TOKENS:
            rule = f"prompts and outputs of at most {MOST_TOKENS:,} tokens (--max-prompt-tokens cuts prompts)"
            lengths = f"{request.prompt_tokens:,} and {request.output_tokens:,}"
            raise ConfigError(f"the load must have {rule}, request {request.request_id!r} has {lengths}")


def _taken(settings: LoadSettings) -> Workload:
    if settings.workload is not None:
        return generate(
            settings.workload, requests=settings.requests, seed=settings.seed, rate_rps=settings.rate, scv=settings.scv
        )
    assert settings.trace is not None
    drawn = draws_arrivals(settings.trace, settings.format)
    return load_trace(
        settings.trace,
        format=settings.format,
        rate_rps=settings.rate if drawn else None,
        scv=1.0 if settings.scv is None else settings.scv,
        seed=settings.seed,
        closed_loop=settings.closed_loop,
    )


def _shaped(workload: Workload, settings: LoadSettings) -> Workload:
    if settings.slice_s is not None:
        start_s, end_s = settings.slice_s
        workload = transforms.sliced(workload, start_s, end_s - start_s)
    if settings.limit is not None:
        workload = transforms.first(workload, settings.limit)
    if settings.max_prompt_tokens is not None:
        how: Literal["clip", "drop"] = "drop" if settings.drop_longer else "clip"
        workload = transforms.with_prompt_limit(workload, settings.max_prompt_tokens, how)
    if settings.spread_s:
        workload = transforms.spread(workload, settings.spread_s, settings.seed)
    return workload if settings.max_gap_s is None else transforms.capped_gaps(workload, settings.max_gap_s)


def _paced(workload: Workload, settings: LoadSettings) -> Workload:
    if settings.rate is not None and len(workload.requests) > 1:
        return transforms.at_rate(workload, settings.rate)
    return transforms.scaled(workload, settings.speed)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1e3
