"""Engine settings: the `kairos` object inside vLLM's `--additional-config`."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_kairos.core.node import Role
from vllm_kairos.engine.governor_settings import GOVERNOR_KEY, EngineGovernorSettings, parse_governor
from vllm_kairos.engine.step_settings import RECORD_KEY, StepRecordSettings, parse_step_record
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import load_profile

SETTINGS_KEY = "kairos"
EMULATION_KEY = "emulation"  # for the emulated executor, which reads it itself
DEFAULT_CHUNK_TOKENS = 512
DEFAULT_FLOOR_TOKENS = 16
_PREFIX = f"additional_config.{SETTINGS_KEY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How one engine takes part; the defaults leave it exactly as stock vLLM.

    `default_chunk_tokens` bounds a step (decodes included) that carries prefill nobody planned; None
    leaves such prefill to vLLM, or to the governor. A prefill that found no room in `max_wait_steps` steps in a row gets
    `floor_chunk_tokens` in the next one.
    """

    enabled: bool = False
    node_id: str = field(default_factory=socket.gethostname)
    role: Role = Role.BOTH
    state_endpoint: str | None = None
    heartbeat_period_s: float = 0.1
    default_chunk_tokens: int | None = None
    max_wait_steps: int = 8
    floor_chunk_tokens: int = DEFAULT_FLOOR_TOKENS
    profile: str | None = None
    state_key_file: str | None = None
    step_record: StepRecordSettings | None = None  # None: steps are not recorded
    governor: EngineGovernorSettings | None = None  # None: deadlines bound no step

    @property
    def state_key(self) -> bytes | None:
        """The shared key of the node-state feed, or None; ConfigError when its file cannot be used."""
        if self.state_key_file is None:
            return None
        try:
            key = Path(self.state_key_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"{_PREFIX}.state_key_file: cannot read {self.state_key_file!r}: {error.strerror}") from error
        if not key:
            raise ConfigError(f"{_PREFIX}.state_key_file must hold a key, {self.state_key_file!r} is empty")
        return key


def parse_settings(additional_config: Any) -> EngineSettings:
    """Read the settings from vLLM's additional config; ConfigError names the field, the rule and the value."""
    raw = additional_config.get(SETTINGS_KEY) if isinstance(additional_config, Mapping) else None
    if raw is None:
        return EngineSettings()
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{_PREFIX} must be an object, got {raw!r}")
    record = parse_step_record(raw.get(RECORD_KEY), _profile_of(raw))
    own = {name: value for name, value in raw.items() if name not in (EMULATION_KEY, RECORD_KEY, GOVERNOR_KEY)}
    governed = raw.get(GOVERNOR_KEY) not in (None, False)
    if raw and not own and not governed:
        return EngineSettings(step_record=record)  # emulated, recorded: its schedule is stock vLLM's
    unknown = sorted(set(own) - set(_READERS))
    if unknown:
        known = ", ".join(sorted([*_READERS, RECORD_KEY, GOVERNOR_KEY]))
        raise ConfigError(f"{_PREFIX}.{unknown[0]}: no such setting; known are {known}")
    values = {name: _READERS[name](name, value) for name, value in own.items() if value is not None}
    values["default_chunk_tokens"] = _default_chunk(values.get("role", Role.BOTH), values.get("default_chunk_tokens"), governed)
    floor_tokens = values.get("floor_chunk_tokens", DEFAULT_FLOOR_TOKENS)
    governor = parse_governor(raw.get(GOVERNOR_KEY), default_profile=_profile_of(raw), floor_tokens=floor_tokens)
    return EngineSettings(enabled=True, step_record=record, governor=governor, **values)


def check_profile(settings: EngineSettings, model: str, served_name: str | None) -> None:
    """Refuse a profile that cannot be read or is of another model; ProfileError or ConfigError names the value.

    A profile names its model as the profiler did: by what it is served as, its path, or the path's last part.
    """
    if settings.profile is None:
        return
    found = load_profile(settings.profile).model
    if found not in {model, served_name, Path(model).name}:
        raise ConfigError(f"{_PREFIX}.profile must be of model {served_name or model!r}, {settings.profile!r} is of {found!r}")


def rank_endpoint(endpoint: str, dp_rank: int) -> str:
    """The endpoint of one data-parallel rank: the rank is added to a TCP port, or appended to another address."""
    if not endpoint.startswith("tcp://"):
        return endpoint if dp_rank == 0 else f"{endpoint}.{dp_rank}"
    address, port = endpoint.rsplit(":", 1)
    return f"{address}:{int(port) + dp_rank}"


def _profile_of(raw: Mapping[str, Any]) -> Any:
    """The profile that predicts this engine's steps unless the recorder's or the governor's settings name one."""
    emulation = raw.get(EMULATION_KEY)
    return raw.get("profile") or (emulation.get("profile") if isinstance(emulation, Mapping) else None)


def _default_chunk(role: Role, configured: int | None, governed: bool) -> int | None:
    if role is Role.PREFILL:
        return None
    return configured or (DEFAULT_CHUNK_TOKENS if role is Role.DECODE and not governed else None)


def _refuse(name: str, rule: str, value: Any) -> ConfigError:
    return ConfigError(f"{_PREFIX}.{name} must be {rule}, got {value!r}")


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _refuse(name, "a non-empty string", value)
    return value


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _refuse(name, "a whole number >= 1", value)
    return value


def _role(name: str, value: Any) -> Role:
    if not isinstance(value, str) or value not in tuple(Role):
        raise _refuse(name, "one of " + ", ".join(Role), value)
    return Role(value)


def _period(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.001 <= value <= 60:
        raise _refuse(name, "a number of seconds in 0.001..60", value)
    return float(value)


def _endpoint(name: str, value: Any) -> str:
    text = _text(name, value)
    transport, _, address = text.partition("://")
    port = address.rpartition(":")[2]
    ok = transport == "ipc" and bool(address)
    ok = ok or (transport == "tcp" and ":" in address and port.isdigit() and 1 <= int(port) <= 65535)
    if not ok:
        raise _refuse(name, "tcp://HOST:PORT or ipc://PATH", value)
    return text


def _file(name: str, value: Any) -> str:
    text = _text(name, value)
    if not Path(text).is_file():
        raise _refuse(name, "the path of an existing file", value)
    return text


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "node_id": _text,
    "role": _role,
    "state_endpoint": _endpoint,
    "heartbeat_period_s": _period,
    "default_chunk_tokens": _count,
    "max_wait_steps": _count,
    "floor_chunk_tokens": _count,
    "profile": _file,
    "state_key_file": _file,
}
