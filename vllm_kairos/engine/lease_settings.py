"""Settings of leases: the `leases` object inside the engine settings."""

from dataclasses import dataclass
from typing import Any

from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.errors import ConfigError
from vllm_kairos.settings_object import Reader, flag, number, read_object, switched, text

LEASES_KEY = "leases"
_PREFIX = f"additional_config.kairos.{LEASES_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLeaseSettings:
    """What the engine needs to grant leases; `profile` (a file or a shipped name) predicts its steps.

    `correct`: by what steps take longer or shorter than predicted.
    """

    profile: str
    terms: LeaseSettings
    correct: bool = True
    totals_file: str | None = None  # carries the counts to the API server; one of its own unless given


def parse_leases(raw: Any, *, default_profile: Any, default_tbt_slo_s: float | None) -> EngineLeaseSettings | None:
    """Read the settings; None: off. ConfigError names the field, the rule and the value."""
    asked = switched(_PREFIX, raw)
    if asked is None:
        return None
    values = read_object(_PREFIX, asked, _READERS)
    profile = values.pop("profile", default_profile)
    own = {name: values.pop(name) for name in ("correct", "totals_file") if name in values}
    if not profile:
        raise ConfigError(f"{_PREFIX}.profile must name a profile, got {profile!r}, and kairos.profile names none")
    if default_tbt_slo_s is not None:
        values.setdefault("tbt_slo_s", default_tbt_slo_s)
    return EngineLeaseSettings(profile=profile, terms=LeaseSettings(**values), **own)


def check_leases(leases: EngineLeaseSettings, *, endpoint: str | None, heartbeat_s: float) -> None:
    """Refuse leases that nobody hears of, or that end before they are renewed. Raises ConfigError."""
    if endpoint is None:
        raise ConfigError(f"{_PREFIX} needs state_endpoint, by which routers hear of them, got none")
    if leases.terms.ttl_s <= heartbeat_s:
        rule = f"> heartbeat_period_s, which is {heartbeat_s:g}"
        raise ConfigError(f"{_PREFIX}.ttl_s must be {rule}, got {leases.terms.ttl_s:g}")


_SECONDS = number("a number > 0 and <= 3600", lambda value: 0 < value <= 3600)

_READERS: dict[str, Reader] = {
    "ttl_s": _SECONDS,
    "horizon_s": _SECONDS,
    "tbt_slo_s": _SECONDS,
    "beta": number("a number > 0 and <= 1", lambda value: 0 < value <= 1),
    "profile": text,
    "correct": flag,
    "totals_file": text,
}
