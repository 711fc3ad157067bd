"""What every shipped profile is made of, and how a fitted one is put together."""

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.fitting.artifact import Accuracy, Profile
from vllm_kairos.fitting.fit import FitReport

SEED = 0
CHUNKS_TOKENS = (2048, 1024, 512, 256, 128, 64)
BLOCK_TOKENS = 16
GPU_MEMORY_UTILIZATION = 0.9
ACTIVATION_BYTES = 2 * 2**30
_DIGITS = 6  # of a coefficient: far below its error, and equal on every machine

_Cost = TypeVar("_Cost", PrefillCost, DecodeCost, Accuracy)


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a profile is of."""

    hardware: str
    model: str
    vllm_version: str
    engine_flags: tuple[str, ...]
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    token_budget_tokens: int
    period_overhead_s: float
    note: str
    source: str


def kv_capacity_tokens(*, device_bytes: float, devices: int, weights_bytes: float, kv_bytes_per_token: int) -> int:
    """KV tokens left at a memory utilization of 0.9, rounded down to whole blocks."""
    free_bytes = devices * (GPU_MEMORY_UTILIZATION * device_bytes - ACTIVATION_BYTES) - weights_bytes
    return int(free_bytes / kv_bytes_per_token / BLOCK_TOKENS) * BLOCK_TOKENS


def profile_of(identity: Identity, report: FitReport) -> Profile:
    """Put a fit and its identity together."""
    accuracy = {name: _rounded(value) for name, value in report.accuracy.items()}
    return assemble(identity, rounded_model(report.fitted), accuracy)


def assemble(identity: Identity, model: LinearStepModel, accuracy: dict[str, Accuracy]) -> Profile:
    """Fill in what all shipped profiles share."""
    values = {field.name: getattr(identity, field.name) for field in fields(Identity)}
    return Profile(
        **values,
        block_size_tokens=BLOCK_TOKENS,
        chunk_candidates_tokens=CHUNKS_TOKENS,
        fitted=model,
        accuracy=accuracy,
    )


def rounded_model(model: LinearStepModel) -> LinearStepModel:
    """Cut coefficients to the digits that are worth printing."""
    return replace(model, prefill=_rounded(model.prefill), decode=_rounded(model.decode), extra=_rounded(model.extra))


def _rounded(value: _Cost) -> _Cost:
    numbers: dict[str, Any] = {field.name: _cut(getattr(value, field.name)) for field in fields(value)}
    return type(value)(**numbers)


def _cut(number: float) -> float:
    return number if isinstance(number, int) else float(f"{number:.{_DIGITS}g}")
