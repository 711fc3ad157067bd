"""Per-request objectives from headers, the configured ones where a request says nothing."""

import math
from collections.abc import Mapping

import msgspec

from vllm_kairos.errors import RequestError

TTFT_HEADERS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
TBT_HEADERS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")


class Objectives(msgspec.Struct, frozen=True):
    """What one request asks for."""

    ttft_s: float
    tbt_s: float


def objectives(headers: Mapping[str, str], default: Objectives) -> Objectives:
    """Read the SLO headers; raises RequestError naming the header and the value.

    `headers` must look names up without regard to case, or hold them in lower case.
    """
    return Objectives(
        ttft_s=_read(headers, TTFT_HEADERS, default.ttft_s),
        tbt_s=_read(headers, TBT_HEADERS, default.tbt_s),
    )


def _read(headers: Mapping[str, str], names: tuple[str, ...], default_s: float) -> float:
    for name in names:
        raw = headers.get(name)
        if raw is not None:
            return _milliseconds(name, raw) / 1e3
    return default_s


def _milliseconds(name: str, raw: str) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf):
        raise RequestError(f"header {name} must be a finite number of milliseconds > 0, got {raw!r}")
    return value
