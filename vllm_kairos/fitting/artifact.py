"""The profile artifact: a fitted latency model as one JSON file that a person can read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from vllm_kairos.core.linear import MAX_COEFFICIENT, DecodeCost, FittedLimits, LinearStepModel, PrefillCost, ShapeLimits
from vllm_kairos.errors import ProfileError
from vllm_kairos.input_file import read_input

PROFILE_SCHEMA = 1
"""Raise when a field changes meaning or is removed; a reader refuses any other."""

_MAX_WHOLE = 2**53  # what every JSON reader keeps exact

_T = TypeVar("_T", PrefillCost, DecodeCost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How far predictions were from configurations that the fit never saw; errors relative to the measured step."""

    mape: float
    worst_error: float
    configurations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One printed number that a profile was made to meet, and how far it is from doing so."""

    quantity: str
    """What was printed; begins with "at most" where the number is a bound."""
    target: float
    predicted: float
    unit: str
    residual: float
    """In `unit`: predicted less target, and 0 where a bound holds."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Step latency of one model on one kind of hardware, with what it was measured under."""

    hardware: str
    model: str
    vllm_version: str
    engine_flags: tuple[str, ...]
    kv_bytes_per_token: int
    block_size_tokens: int
    token_budget_tokens: int
    chunk_candidates_tokens: tuple[int, ...]
    period_overhead_s: float
    """Seconds from one step's end to the next one's start; in a running engine they are part of every step."""
    fitted: LinearStepModel
    """The models as fitted to step times, without the overhead."""
    accuracy: Mapping[str, Accuracy]
    """By model: prefill, decode, mixed."""
    note: str = ""
    source: str = ""
    """How prefill, decode and mixed steps were obtained, where `kairos profile` did not measure them."""
    kv_capacity_tokens: int = 0
    """KV tokens that the device holds beside the model; 0: unknown."""
    calibration: tuple[Calibration, ...] = ()

    @property
    def step_model(self) -> LinearStepModel:
        """The model to predict with: step-to-step periods, which TTFT and TBT are made of."""
        model, overhead_s = self.fitted, self.period_overhead_s
        return replace(
            model,
            prefill=replace(model.prefill, fixed_s=model.prefill.fixed_s + overhead_s),
            decode=replace(model.decode, fixed_s=model.decode.fixed_s + overhead_s),
        )


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write `profile` as JSON. Raises ProfileError when the file cannot be written."""
    text = json.dumps(_to_json(profile), indent=2, allow_nan=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ProfileError(f"profile {path}: cannot be written: {error.strerror}") from error


def load_profile(path: str | Path, *, model: str | None = None) -> Profile:
    """Read a profile, of `model` if that is given. Raises ProfileError naming the path, the field, the rule and the value."""
    try:
        raw = json.loads(read_input(path))
    except OSError as error:
        raise ProfileError(f"profile {path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"profile {path}: must be a JSON document: {error}") from error
    try:
        profile = _from_json(_Reader("", raw))
    except ProfileError as error:
        raise ProfileError(f"profile {path}: {error}") from error
    if model is not None and profile.model != model:
        raise ProfileError(f"profile {path}: model must be {model!r}, got {profile.model!r}")
    return profile


def _to_json(profile: Profile) -> dict[str, Any]:
    model = profile.fitted
    if model.limits is None:
        raise ProfileError("profile: fitted.limits must be set, got None")
    costs: dict[str, PrefillCost | DecodeCost] = {"prefill": model.prefill, "decode": model.decode, "mixed": model.extra}
    limits = {"prefill": model.limits.prefill, "decode": model.limits.decode, "mixed": model.limits.mixed}
    return {
        "schema": PROFILE_SCHEMA,
        "note": profile.note,
        **_optional_to_json(profile),
        "hardware": profile.hardware,
        "model": profile.model,
        "vllm_version": profile.vllm_version,
        "engine_flags": list(profile.engine_flags),
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "block_size_tokens": profile.block_size_tokens,
        "token_budget_tokens": profile.token_budget_tokens,
        "chunk_candidates_tokens": list(profile.chunk_candidates_tokens),
        "period_overhead_s": profile.period_overhead_s,
        "models": {
            name: {
                "coefficients": asdict(costs[name]),
                "fitted_up_to": asdict(limits[name]),
                "held_out": asdict(profile.accuracy[name]),
            }
            for name in costs
        },
    }


def _optional_to_json(profile: Profile) -> dict[str, Any]:
    """Leave out what is not known, so that such a file stays as an older version wrote it."""
    known = {
        "source": profile.source,
        "kv_capacity_tokens": profile.kv_capacity_tokens,
        "calibration": [asdict(row) for row in profile.calibration],
    }
    return {name: value for name, value in known.items() if value}


def _from_json(root: "_Reader") -> Profile:
    schema = root.whole("schema", 0)
    if schema != PROFILE_SCHEMA:
        raise ProfileError(f"schema must be {PROFILE_SCHEMA}, got {schema}")
    models = root.child("models")
    each = {name: models.child(name) for name in ("prefill", "decode", "mixed")}
    chunks = root.items("chunk_candidates_tokens", int)
    if not chunks or min(chunks) < 1:
        raise ProfileError(f"chunk_candidates_tokens must be one or more integers >= 1, got {list(chunks)}")
    return Profile(
        hardware=root.text("hardware"),
        model=root.text("model"),
        vllm_version=root.text("vllm_version"),
        engine_flags=root.items("engine_flags", str),
        kv_bytes_per_token=root.whole("kv_bytes_per_token", 0),
        block_size_tokens=root.whole("block_size_tokens", 1),
        token_budget_tokens=root.whole("token_budget_tokens", 1),
        chunk_candidates_tokens=chunks,
        period_overhead_s=root.number("period_overhead_s"),
        fitted=LinearStepModel(
            prefill=_cost(each["prefill"].child("coefficients"), PrefillCost),
            decode=_cost(each["decode"].child("coefficients"), DecodeCost),
            extra=_cost(each["mixed"].child("coefficients"), PrefillCost),
            limits=FittedLimits(**{name: _limits(reader.child("fitted_up_to")) for name, reader in each.items()}),
        ),
        accuracy={name: _accuracy(reader.child("held_out")) for name, reader in each.items()},
        note=root.text("note") if "note" in root.raw else "",
        source=root.text("source") if "source" in root.raw else "",
        kv_capacity_tokens=root.whole("kv_capacity_tokens") if "kv_capacity_tokens" in root.raw else 0,
        calibration=tuple(_calibration(row) for row in root.children("calibration")) if "calibration" in root.raw else (),
    )


def _cost(reader: "_Reader", kind: type[_T]) -> _T:
    return kind(**{item.name: reader.number(item.name) for item in fields(kind)})


def _limits(reader: "_Reader") -> ShapeLimits:
    return ShapeLimits(**{item.name: reader.whole(item.name) for item in fields(ShapeLimits)})


def _accuracy(reader: "_Reader") -> Accuracy:
    return Accuracy(
        mape=reader.number("mape"),
        worst_error=reader.number("worst_error"),
        configurations=reader.whole("configurations", 0),
    )


def _calibration(reader: "_Reader") -> Calibration:
    return Calibration(
        quantity=reader.text("quantity"),
        target=reader.signed("target"),
        predicted=reader.signed("predicted"),
        unit=reader.text("unit"),
        residual=reader.signed("residual"),
        source=reader.text("source"),
    )


class _Reader:
    """One JSON object of the file; its errors name the field by its whole path."""

    def __init__(self, path: str, raw: Any) -> None:
        if not isinstance(raw, dict):
            raise ProfileError(f"{path or 'the document'} must be an object, got {type(raw).__name__}")
        self._path, self.raw = path, raw

    def _name(self, field: str) -> str:
        return f"{self._path}.{field}" if self._path else field

    def _get(self, field: str) -> Any:
        if field not in self.raw:
            raise ProfileError(f"{self._name(field)} is required, got nothing")
        return self.raw[field]

    def child(self, field: str) -> "_Reader":
        return _Reader(self._name(field), self._get(field))

    def children(self, field: str) -> tuple["_Reader", ...]:
        value = self._get(field)
        if not isinstance(value, list):
            raise ProfileError(f"{self._name(field)} must be a list, got {type(value).__name__}")
        return tuple(_Reader(f"{self._name(field)}[{index}]", row) for index, row in enumerate(value))

    def text(self, field: str) -> str:
        value = self._get(field)
        if not isinstance(value, str):
            raise ProfileError(f"{self._name(field)} must be a string, got {value!r}")
        return value

    def number(self, field: str) -> float:
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            raise ProfileError(f"{self._name(field)} must be a finite number >= 0, got {value!r}")
        if value > MAX_COEFFICIENT:
            raise ProfileError(f"{self._name(field)} must be <= {MAX_COEFFICIENT:g}, got {value!r}")
        return float(value)

    def signed(self, field: str) -> float:
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_COEFFICIENT:
            raise ProfileError(f"{self._name(field)} must be a number within +-{MAX_COEFFICIENT:g}, got {value!r}")
        return float(value)

    def whole(self, field: str, least: int = 0) -> int:
        value = self._get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ProfileError(f"{self._name(field)} must be an integer >= {least}, got {value!r}")
        if value > _MAX_WHOLE:
            raise ProfileError(f"{self._name(field)} must be <= {_MAX_WHOLE}, got {value!r}")
        return value

    def items(self, field: str, kind: type[Any]) -> tuple[Any, ...]:
        value = self._get(field)
        if not isinstance(value, list) or any(type(item) is not kind for item in value):
            raise ProfileError(f"{self._name(field)} must be a list of {kind.__name__}, got {value!r}")
        return tuple(value)
