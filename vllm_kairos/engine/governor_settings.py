"""Settings of the deadline governor: the `governor` object inside the engine settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from vllm_kairos.core.governor import GovernorMode, GovernorSettings, Objective
from vllm_kairos.errors import ConfigError

GOVERNOR_KEY = "governor"
_PREFIX = f"additional_config.kairos.{GOVERNOR_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGovernorSettings:
    """What the engine needs to govern.

    `profile` (a file or a shipped name) predicts steps. Requests' own objectives count as no tighter than
    `tightest_slo_s`: an objective that no step can meet would keep everybody's prefill back.
    """

    profile: str
    sizing: GovernorSettings
    tightest_slo_s: float = 0.010


def parse_governor(raw: Any, *, default_profile: Any, floor_tokens: int) -> EngineGovernorSettings | None:
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
    profile = values.pop("profile", default_profile)
    if not profile:
        raise ConfigError(f"{_PREFIX}.profile must name a profile, got {profile!r}, and kairos.profile names none")
    own = {"tightest_slo_s": values.pop("tightest_slo_s")} if "tightest_slo_s" in values else {}
    objective = Objective(values.pop("tbt_slo_s", None), values.pop("tpot_slo_s", None))
    if objective != Objective():
        values["objective"] = objective
    return EngineGovernorSettings(profile=profile, sizing=GovernorSettings(floor_tokens=floor_tokens, **values), **own)


def _refuse(name: str, rule: str, value: Any) -> ConfigError:
    return ConfigError(f"{_PREFIX}.{name} must be {rule}, got {value!r}")


def _within(most: float, rule: str) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most or value == inf:
            raise _refuse(name, rule, value)
        return float(value)

    return read


def _mode(name: str, value: Any) -> GovernorMode:
    if not isinstance(value, str) or value not in tuple(GovernorMode):
        raise _refuse(name, "one of " + ", ".join(GovernorMode), value)
    return GovernorMode(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(name, "a non-empty string", value)
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return value


_SECONDS = _within(inf, "a finite number > 0")

_READERS: dict[str, Callable[[str, Any], Any]] = {
    "mode": _mode,
    "profile": _text,
    "tbt_slo_s": _SECONDS,
    "tpot_slo_s": _SECONDS,
    "beta": _within(1.0, "a number > 0 and <= 1"),
    "starvation_s": _SECONDS,
    "tightest_slo_s": _SECONDS,
    "correct": _flag,
}
