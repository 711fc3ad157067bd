"""Settings of the step recorder: the `step_record` object inside the engine settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from vllm_kairos.errors import ConfigError

RECORD_KEY = "step_record"
_PREFIX = f"additional_config.kairos.{RECORD_KEY}"
_MIN_FILE_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecordSettings:
    """How steps are recorded.

    `profile` (a file or a shipped name) predicts them; without one nothing is held against their times. A
    step that takes more than `stall_factor` times its prediction counts as a stall. `file`, if any, gets a
    line per step and, with what it was rotated to, stays within `max_file_bytes`. `totals_file` carries the
    counts to the API server; it has a name of its own in the temporary directory unless one is given.
    """

    tbt_slo_s: float = 0.070
    stall_factor: float = 2.0
    profile: str | None = None
    file: str | None = None
    max_file_bytes: int = 256 * 2**20
    totals_file: str | None = None


def parse_step_record(raw: Any, default_profile: Any = None) -> StepRecordSettings | None:
    """Read the settings; None: off. ConfigError names the field, the rule and the value."""
    if raw is None or raw is False:
        return None
    if raw is True:
        raw = {}
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{_PREFIX} must be an object, true or false, got {raw!r}")
    unknown = sorted(set(raw) - set(_READERS))
    if unknown:
        raise ConfigError(f"{_PREFIX}.{unknown[0]}: no such setting; known are {', '.join(sorted(_READERS))}")
    values = {name: _READERS[name](name, value) for name, value in raw.items() if value is not None}
    values.setdefault("profile", default_profile)
    return StepRecordSettings(**values)


def _refuse(name: str, rule: str, value: Any) -> ConfigError:
    return ConfigError(f"{_PREFIX}.{name} must be {rule}, got {value!r}")


def _above(least: float) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least < value < inf:
            raise _refuse(name, f"a finite number > {least:g}", value)
        return float(value)

    return read


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(name, "a non-empty string", value)
    return value


def _bytes(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < _MIN_FILE_BYTES:
        raise _refuse(name, f"a whole number >= {_MIN_FILE_BYTES}", value)
    return value


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "tbt_slo_s": _above(0.0),
    "stall_factor": _above(1.0),
    "profile": _text,
    "file": _text,
    "max_file_bytes": _bytes,
    "totals_file": _text,
}
