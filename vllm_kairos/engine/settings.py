"""Engine settings: the `kairos` object inside vLLM's `--additional-config`."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_kairos.core.node import Role
from vllm_kairos.engine.governor_settings import GOVERNOR_KEY, EngineGovernorSettings, parse_governor
from vllm_kairos.engine.lease_settings import LEASES_KEY, EngineLeaseSettings, check_leases, parse_leases
from vllm_kairos.engine.step_settings import RECORD_KEY, StepRecordSettings, parse_step_record
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.settings_object import Reader, choice, number, read_object, refused, text, whole

SETTINGS_KEY = "kairos"
EMULATION_KEY = "emulation"  # for the emulated executor, which reads it itself
DEFAULT_CHUNK_TOKENS = 512
DEFAULT_FLOOR_TOKENS = 16
DEFAULT_HEARTBEAT_S = 0.1
_PREFIX = f"additional_config.{SETTINGS_KEY}"
_OBJECTS = (RECORD_KEY, GOVERNOR_KEY, LEASES_KEY)  # with readers of their own


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
    heartbeat_period_s: float = DEFAULT_HEARTBEAT_S
    default_chunk_tokens: int | None = None
    max_wait_steps: int = 8
    floor_chunk_tokens: int = DEFAULT_FLOOR_TOKENS
    profile: str | None = None
    state_key_file: str | None = None
    step_record: StepRecordSettings | None = None  # None: steps are not recorded
    governor: EngineGovernorSettings | None = None  # None: deadlines bound no step
    leases: EngineLeaseSettings | None = None  # None: routers are told of no leases

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
    own = {name: value for name, value in raw.items() if name not in (EMULATION_KEY, *_OBJECTS)}
    governed, leasing = (raw.get(key) not in (None, False) for key in (GOVERNOR_KEY, LEASES_KEY))
    if raw and not own and not governed and not leasing:
        return EngineSettings(step_record=record)  # emulated, recorded: its schedule is stock vLLM's
    values = read_object(_PREFIX, own, _READERS, also_known=_OBJECTS)
    values["default_chunk_tokens"] = _default_chunk(values.get("role", Role.BOTH), values.get("default_chunk_tokens"), governed)
    floor_tokens = values.get("floor_chunk_tokens", DEFAULT_FLOOR_TOKENS)
    governor = parse_governor(raw.get(GOVERNOR_KEY), default_profile=_profile_of(raw), floor_tokens=floor_tokens)
    leases = _leases(raw, values, governor)
    return EngineSettings(enabled=True, step_record=record, governor=governor, leases=leases, **values)


def check_profile(settings: EngineSettings, model: str, served_name: str | None) -> None:
    """Refuse a profile that cannot be read or is of another model; ProfileError or ConfigError names the value.

    A profile names its model as the profiler did: by what it is served as, its path, or the path's last part.
    """
    if settings.profile is None:
        return
    found = load_profile(settings.profile).model
    if found not in _names(model, served_name):
        raise ConfigError(f"{_PREFIX}.profile must be of model {served_name or model!r}, {settings.profile!r} is of {found!r}")


def foreign_profiles(
    settings: EngineSettings, model: str, served_name: str | None, kv_bytes_per_token: int
) -> Iterator[tuple[str, str, str]]:
    """Settings that predict steps by a profile of another model: the setting, the profile, its model.

    Fine-tuned models have other names and the same times, so the size of a token's KV must differ too.
    """
    parts = {RECORD_KEY: settings.step_record, GOVERNOR_KEY: settings.governor, LEASES_KEY: settings.leases}
    for name, part in parts.items():
        if part is None or part.profile is None:
            continue
        found = load_profile(resolve_profile(part.profile))
        if found.model not in _names(model, served_name) and found.kv_bytes_per_token != kv_bytes_per_token:
            yield f"{_PREFIX}.{name}.profile", part.profile, found.model


def _names(model: str, served_name: str | None) -> set[str | None]:
    return {model, served_name, Path(model).name}


def rank_endpoint(endpoint: str, dp_rank: int) -> str:
    """The endpoint of one data-parallel rank: the rank is added to a TCP port, or appended to another address."""
    if not endpoint.startswith("tcp://"):
        return endpoint if dp_rank == 0 else f"{endpoint}.{dp_rank}"
    address, port = endpoint.rsplit(":", 1)
    return f"{address}:{int(port) + dp_rank}"


def _profile_of(raw: Mapping[str, Any]) -> Any:
    """The profile that predicts this engine's steps unless the recorder's or the governor's settings name one."""
    emulation = raw.get(EMULATION_KEY)
    emulated = emulation.get("profile") if isinstance(emulation, Mapping) else None
    return raw.get("profile") or (emulated if isinstance(emulated, str) else None)  # the executor refuses any other


def _leases(
    raw: Mapping[str, Any], values: Mapping[str, Any], governor: EngineGovernorSettings | None
) -> EngineLeaseSettings | None:
    """None also on a prefill server, to which nothing is deflected."""
    leases = parse_leases(
        raw.get(LEASES_KEY),
        default_profile=_profile_of(raw) if governor is None else governor.profile,
        default_tbt_slo_s=None if governor is None else governor.sizing.objective.tbt_s or governor.sizing.objective.tpot_s,
    )
    if leases is None or not values.get("role", Role.BOTH).decodes:
        return None
    heartbeat_s = values.get("heartbeat_period_s", DEFAULT_HEARTBEAT_S)
    check_leases(leases, endpoint=values.get("state_endpoint"), heartbeat_s=heartbeat_s)
    return leases


def _default_chunk(role: Role, configured: int | None, governed: bool) -> int | None:
    if role is Role.PREFILL:
        return None
    return configured or (DEFAULT_CHUNK_TOKENS if role is Role.DECODE and not governed else None)


def _endpoint(name: str, value: Any) -> str:
    found = text(name, value)
    transport, _, address = found.partition("://")
    port = address.rpartition(":")[2]
    ok = transport == "ipc" and bool(address)
    ok = ok or (transport == "tcp" and ":" in address and port.isascii() and port.isdecimal() and 1 <= int(port) <= 65535)
    if not ok:
        raise refused(name, "tcp://HOST:PORT or ipc://PATH", value)
    return found


def _file(name: str, value: Any) -> str:
    found = text(name, value)
    if not Path(found).is_file():
        raise refused(name, "the path of an existing file", value)
    return found


_READERS: dict[str, Reader] = {
    "node_id": text,
    "role": choice(Role),
    "state_endpoint": _endpoint,
    "heartbeat_period_s": number("a number of seconds in 0.001..60", lambda value: 0.001 <= value <= 60),
    "default_chunk_tokens": whole(1),
    "max_wait_steps": whole(1),
    "floor_chunk_tokens": whole(1),
    "profile": _file,
    "state_key_file": _file,
}
