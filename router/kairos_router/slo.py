"""Per-request objectives from headers and from the body's `vllm_xargs`, the configured ones where a request says nothing."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from vllm_kairos.errors import RequestError, WireError
from vllm_kairos.wire.objectives import LONGEST_S, TBT_KEY, TPOT_KEY, read_objectives

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TBT_HEADERS = ("x-slo-tbt-ms",)
TPOT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


class Objectives(msgspec.Struct, frozen=True):
    """What one request asks for."""

    ttft_s: float
    tbt_s: float
    """The tightest limit on the time between two of its tokens; the decision plans within it."""
    for_engine: Mapping[str, float] = {}
    """What the request itself asks of its tokens, by the names under which the engine reads it."""


def objectives(headers: Mapping[str, str], default: Objectives, extra_args: Any = None) -> Objectives:
    """Read the SLO headers and `extra_args`, the body's `vllm_xargs`, which win over headers.

    Raises RequestError naming the header or the field, and the value. `headers` must look names up without regard
    to case, or hold them in lower case.
    """
    ttft_s, tbt_s, tpot_s = _read(headers, TTFT_HEADERS), _read(headers, TBT_HEADERS), _read(headers, TPOT_HEADERS)
    if extra_args is not None:
        own_tbt_s, own_tpot_s = _of_body(extra_args)
        tbt_s, tpot_s = own_tbt_s or tbt_s, own_tpot_s or tpot_s
    if ttft_s is None and tbt_s is None and tpot_s is None:
        return default
    return Objectives(
        ttft_s=default.ttft_s if ttft_s is None else ttft_s,
        tbt_s=min((limit_s for limit_s in (tbt_s, tpot_s) if limit_s is not None), default=default.tbt_s),
        for_engine=_for_engine(tbt_s, tpot_s),
    )


def _of_body(extra_args: Any) -> tuple[float | None, float | None]:
    try:
        return read_objectives(extra_args) or (None, None)
    except WireError as error:
        raise RequestError(str(error)) from error


def _for_engine(tbt_s: float | None, tpot_s: float | None) -> dict[str, float]:
    """Gaps within the TBT objective keep their mean within any TPOT objective that is no tighter: it is left out."""
    told = {} if tbt_s is None else {TBT_KEY: min(tbt_s, LONGEST_S)}
    if tpot_s is not None and (tbt_s is None or tpot_s < tbt_s):
        told[TPOT_KEY] = min(tpot_s, LONGEST_S)
    return told


def _read(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    """The tightest of what `names` say, each of which is checked; None: none is there."""
    return min((_seconds(name, headers[name]) for name in names if name in headers), default=None)


def _seconds(name: str, raw: str) -> float:
    """What a header says, in seconds: so few milliseconds may be no seconds at all, and Python reads more than HTTP has."""
    try:
        seconds = float(raw) / 1e3 if raw.isascii() and "_" not in raw else math.nan
    except ValueError:
        seconds = math.nan
    if not (0 < seconds < math.inf):
        raise RequestError(f"header {name} must be a finite number of milliseconds > 0, got {raw!r}")
    return seconds
