"""Settings of the deadline governor: the `governor` object inside the engine settings."""

from dataclasses import dataclass
from math import inf
from typing import Any

from vllm_kairos.core.governor import MEASURED, GovernorMode, GovernorSettings, Objective
from vllm_kairos.errors import ConfigError
from vllm_kairos.settings_object import Reader, choice, flag, number, read_object, switched, text

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
    totals_file: str | None = None  # carries the counts to the API server; one of its own unless given


def parse_governor(raw: Any, *, default_profile: Any, floor_tokens: int) -> EngineGovernorSettings | None:
    """Read the settings; None: off. ConfigError names the field, the rule and the value."""
    asked = switched(_PREFIX, raw)
    if asked is None:
        return None
    values = read_object(_PREFIX, asked, _READERS)
    profile = values.pop("profile", default_profile)
    if not profile:
        raise ConfigError(f"{_PREFIX}.profile must name a profile, got {profile!r}, and kairos.profile names none")
    own = {name: values.pop(name) for name in ("tightest_slo_s", "totals_file") if name in values}
    objective = Objective(values.pop("tbt_slo_s", None), values.pop("tpot_slo_s", None))
    if objective != Objective():
        values["objective"] = objective
    return EngineGovernorSettings(profile=profile, sizing=GovernorSettings(floor_tokens=floor_tokens, **values), **own)


_SECONDS = number("a finite number > 0", lambda value: 0 < value < inf)

# Of tokens: deadlines are sums of thousands of them, which floats must tell apart.
_OBJECTIVE = number("a number in 0.0001..3600", lambda value: 1e-4 <= value <= 3600)

_SHARE = number('"measured" or a number > 0 and <= 1', lambda value: 0 < value <= 1)


def _beta(name: str, value: Any) -> float | str:
    return MEASURED if value == MEASURED else _SHARE(name, value)


_READERS: dict[str, Reader] = {
    "mode": choice(GovernorMode),
    "profile": text,
    "tbt_slo_s": _OBJECTIVE,
    "tpot_slo_s": _OBJECTIVE,
    "beta": _beta,
    "starvation_s": _SECONDS,
    "ttft_slo_s": _SECONDS,
    "patience_tokens": number("a finite number >= 0", lambda value: 0 <= value < inf),
    "tightest_slo_s": _OBJECTIVE,
    "correct": flag,
    "totals_file": text,
}
