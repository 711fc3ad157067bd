"""What a comparison of server configurations runs: cases, each of them a load under an objective on one kind of server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from benchmarks.governor.contenders import Contender, of_name
from benchmarks.serving.setting import Setting, read_yaml
from vllm_kairos.errors import ConfigError
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.settings_object import Reader, number, refused, text

PRESETS = Path(__file__).with_name("settings")


class ObjectiveKind(StrEnum):
    """What the governor is told, and what counts as late."""

    TBT = "tbt"
    """Gaps between tokens longer than the objective."""

    TPOT = "tpot"
    """Requests whose mean gap is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`load` holds servers (settings of `kairos up`), requests, rates, objectives and contenders.

    `profile`, a file or a shipped name, is what the governor predicts with, and `governor` holds further settings of it.
    Contenders with a scaled profile run at `recovery_rps` alone. Requests unanswered `patience_s` after the last one was
    due are cut off.
    """

    load: Setting
    profile: str
    objective: ObjectiveKind = ObjectiveKind.TBT
    recovery_rps: float | None = None
    patience_s: float = 20.0
    governor: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < self.patience_s < float("inf"):
            raise ConfigError(f"patience_s must be a finite number > 0, got {self.patience_s}")
        if self.recovery_rps is not None and not 0 < self.recovery_rps < float("inf"):
            raise ConfigError(f"recovery_rps must be a finite number > 0, got {self.recovery_rps}")
        resolve_profile(self.profile)
        self.contenders  # noqa: B018 - raises for a name that is none

    @classmethod
    def of(cls, path: Path, name: str, raw: Mapping[str, Any]) -> Self:
        """Build it from what the file says of it. Raises ConfigError or ProfileError."""
        if "/" in name or name in ("", ".", ".."):
            raise ConfigError(f"{path}: cases must have names that a folder may have, got {name!r}")
        own = {key: raw[key] for key in _OWN if key in raw}
        own = {key: _READERS[key](f"{path}: {name}: {key}", value) for key, value in own.items() if value is not None}
        if "profile" not in own:
            raise ConfigError(f"{path}: {name}: profile must name a profile, got none")
        if own.setdefault("objective", ObjectiveKind.TBT) not in list(ObjectiveKind):
            raise ConfigError(f"{path}: {name}: objective must be one of {', '.join(ObjectiveKind)}, got {own['objective']!r}")
        own["objective"] = ObjectiveKind(own["objective"])
        load = Setting.of(path, {key: value for key, value in raw.items() if key not in _OWN} | {"name": name})
        return cls(load=load, **own)

    @property
    def name(self) -> str:
        """Unique in its setting."""
        return self.load.name

    @property
    def slo_s(self) -> float:
        """The objective of tokens, in seconds."""
        return self.load.tbt_slo_ms / 1e3

    @property
    def contenders(self) -> tuple[Contender, ...]:
        """As the file names them."""
        return tuple(of_name(name) for name in self.load.contenders)

    @property
    def engine_objective(self) -> dict[str, float]:
        """As the engine settings have it."""
        return {f"{self.objective}_slo_s": self.slo_s}

    def rates_of(self, contender: Contender) -> tuple[float, ...]:
        """At which requests per second it runs."""
        if not contender.is_scaled:
            return self.load.rates_rps
        return (self.load.rates_rps[-1] if self.recovery_rps is None else self.recovery_rps,)

    def serves_with(self, other: Self) -> bool:
        """Whether one server is fit for both cases."""
        return self._server == other._server

    @property
    def _server(self) -> tuple[Any, ...]:
        return (self.load.cluster, self.load.router_args, self.profile, self.objective, self.slo_s, self.governor)


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(name, "a mapping", value)
    return value


_ABOVE_0 = number("a finite number > 0", lambda value: 0 < value < float("inf"))
_READERS: Mapping[str, Reader] = {
    "profile": text,
    "objective": text,
    "recovery_rps": _ABOVE_0,
    "patience_s": _ABOVE_0,
    "governor": _mapping,
}
_OWN = tuple(each.name for each in fields(Case) if each.name != "load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All cases of a setting; what they share stands beside `cases` in its file."""

    name: str
    title: str
    cases: tuple[Case, ...]

    @classmethod
    def read(cls, name: str) -> Self:
        """Read a preset by name or a file by path. Raises ConfigError naming file, key, rule and value."""
        path, raw = read_yaml(PRESETS, name)
        if not isinstance(raw, dict) or not isinstance(raw.get("cases"), dict) or not raw["cases"]:
            raise ConfigError(f"{path}: must be a mapping with a mapping `cases` that is not empty")
        shared = {key: value for key, value in raw.items() if key != "cases"}
        cases = [
            Case.of(path, str(each), shared | _mapping(f"{path}: {each}", own or {})) for each, own in raw["cases"].items()
        ]
        return cls(name=path.stem, title=str(raw.get("title", path.stem)), cases=tuple(cases))

    def with_changes(self, changes: Mapping[str, Any], *, names: Sequence[str] | None, profile: str | None) -> Self:
        """Some of its cases, or all, with their load and profile changed. Raises ConfigError or ProfileError.

        Where rates are changed, recovery is looked at in the last of them.
        """
        known = [case.name for case in self.cases]
        for name in names or ():
            if name not in known:
                raise ConfigError(f"--cases must be of {', '.join(known)}, got {name!r}")
        kept = [case for case in self.cases if names is None or case.name in names]
        others: dict[str, Any] = {} if profile is None else {"profile": profile}
        others |= {"recovery_rps": None} if "rates_rps" in changes else {}
        return replace(self, cases=tuple(replace(case, load=replace(case.load, **changes), **others) for case in kept))
