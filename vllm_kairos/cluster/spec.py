"""What a local cluster consists of, checked before anything starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from vllm_kairos.core.policies.registry import router_spec
from vllm_kairos.errors import ConfigError
from vllm_kairos.input_file import read_input

MAX_PORT = 65535
GIVEN_FLAGS: Mapping[str, str] = {"--additional-config": "engine", "--scheduler-cls": "scheduler"}
"""Flags of vLLM that every server gets from us, and the setting that says what they hold: a second one would replace ours."""
_MOST = 10_000  # servers of a role, or GiB


class Device(StrEnum):
    """What the servers compute on."""

    CPU = "cpu"
    CUDA = "cuda"


class Scheduler(StrEnum):
    """Ours, or vLLM's own scheduler and NIXL connector for comparison."""

    KAIROS = "kairos"
    STOCK = "stock"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """A whole cluster. Lists that go by server name the prefill servers first, then the decode servers.

    `pins` holds one entry per server: CPUs as in `0` or `0-3,6`, or CUDA device numbers as in `0,1`.
    Empty: the CPUs this process may use are spread evenly, or CUDA devices are counted up from 0;
    emulated servers are not pinned. `emulate` names the profile of a device to emulate, as a file or
    a shipped profile; `emulation` holds further settings of it (docs/emulation.md). `engine` holds further
    settings of our plugin in every server, such as `step_record`; a server's name is added to the `file` of that.
    `aggregated` servers, all of them counted by `decode`, serve both phases by themselves: no KV connector, no router.
    """

    prefill: int = 1
    decode: int = 1
    model: str | None = None
    served_model_name: str | None = None
    device: Device = Device.CPU
    scheduler: Scheduler = Scheduler.KAIROS
    dtype: str | None = None
    pins: tuple[str, ...] = ()
    kv_cache_gib: int = 1
    base_port: int | None = None
    router: bool = True
    router_port: int | None = None
    policy: str | None = None
    profile: str | None = None
    emulate: str | None = None
    emulation: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)
    aggregated: bool = False
    vllm_args: tuple[str, ...] = ()
    prefill_args: tuple[str, ...] = ()
    decode_args: tuple[str, ...] = ()
    router_args: tuple[str, ...] = ()
    log_dir: str | None = None
    startup_timeout_s: float = 600.0

    def __post_init__(self) -> None:
        _check_counts(self)
        for name in ("base_port", "router_port"):
            port = getattr(self, name)
            if port is not None and not 1 <= port <= MAX_PORT:
                raise ConfigError(f"{name} must be between 1 and {MAX_PORT}, got {port}")
        if self.pins and len(self.pins) != self.servers:
            raise ConfigError(f"pins must name one entry for each of {self.servers} servers, got {len(self.pins)}")
        _check_pairs(self)
        _check_words(self)
        if self.profile is not None and not Path(self.profile).is_file():
            raise ConfigError(f"profile must be an existing file, got {self.profile!r}")

    @property
    def servers(self) -> int:
        """How many vLLM servers there are."""
        return self.prefill + self.decode


def _check_pairs(spec: ClusterSpec) -> None:
    """Settings that only make sense with another one."""
    if spec.policy is not None and not spec.router:
        raise ConfigError(f"policy needs the router, got policy {spec.policy!r} without a router")
    if spec.policy is not None:
        try:
            router_spec(spec.policy)
        except ValueError as error:
            raise ConfigError(f"policy {error}, got {spec.policy!r}") from None
    if spec.aggregated and (spec.router or spec.prefill):
        got = "a router" if spec.router else f"{spec.prefill} prefill servers"
        raise ConfigError(f"aggregated needs prefill 0 and no router, got {got}")
    if spec.engine and spec.scheduler is Scheduler.STOCK:
        raise ConfigError(f"engine needs scheduler kairos, got {dict(spec.engine)!r} with stock")
    if spec.emulation and spec.emulate is None:
        raise ConfigError(f"emulation needs emulate to name a profile, got {dict(spec.emulation)!r} without")
    if spec.emulate is not None and spec.device is not Device.CPU:
        raise ConfigError(f"device must be {Device.CPU} where one is emulated, got {spec.device}")


def _check_words(spec: ClusterSpec) -> None:
    for name in ("vllm_args", "prefill_args", "decode_args"):
        for word in getattr(spec, name):
            flag = word.partition("=")[0].replace("_", "-")
            if flag in GIVEN_FLAGS:
                raise ConfigError(f"{name} must not hold {flag}, which the setting {GIVEN_FLAGS[flag]!r} is for, got {word!r}")


def _check_counts(spec: ClusterSpec) -> None:
    for name, least in (("prefill", 0), ("decode", 1), ("kv_cache_gib", 1)):
        value = getattr(spec, name)
        if not least <= value <= _MOST:
            raise ConfigError(f"{name} must be {f'>= {least}' if value < least else f'<= {_MOST}'}, got {value}")
    if spec.prefill == 0 and spec.router:
        raise ConfigError("prefill must be >= 1 with a router, got 0")
    if not 0 < spec.startup_timeout_s < float("inf"):
        raise ConfigError(f"startup_timeout_s must be a finite number > 0, got {spec.startup_timeout_s}")


def read_settings(path: Path) -> dict[str, Any]:
    """Read a YAML file whose keys are the fields of ClusterSpec; ConfigError names file, key, rule and value."""
    try:
        raw = yaml.safe_load(read_input(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date or number that cannot be
        raise ConfigError(f"{path}: must be YAML: {' '.join(str(error).split())}") from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must be a mapping of settings, got {type(raw).__name__}")
    return settings_of(path, raw)


def settings_of(place: Path | str, raw: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of ClusterSpec that `raw` holds as YAML has them; ConfigError names `place`, key, rule and value."""
    return {str(key): _setting(place, str(key), value) for key, value in raw.items()}


def make_spec(settings: dict[str, Any]) -> ClusterSpec:
    """Build the spec from settings of the right types."""
    return ClusterSpec(**settings)


def _setting(path: Path | str, key: str, value: Any) -> Any:
    names = [each.name for each in fields(ClusterSpec)]
    if key not in names:
        raise ConfigError(f"{path}: {key}: no such setting; known are {', '.join(names)}")
    kind = _KINDS.get(key, str)
    if kind is tuple:
        return _words(path, key, value)
    if kind is dict and isinstance(value, dict):
        return {str(name): each for name, each in value.items()}
    if issubclass(kind, StrEnum):
        return _choice(path, key, kind, value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{path}: {key} must be {_NAMES[kind]}, got {value!r}")
    return value


def _words(path: Path | str, key: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, (str, int, float)) for item in value):
        raise ConfigError(f"{path}: {key} must be a list of words, got {value!r}")
    return tuple(str(item) for item in value)


def _choice(path: Path | str, key: str, kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{path}: {key} must be one of {', '.join(kind)}, got {value!r}") from None


_KINDS: dict[str, type] = {
    "prefill": int,
    "decode": int,
    "device": Device,
    "scheduler": Scheduler,
    "pins": tuple,
    "kv_cache_gib": int,
    "base_port": int,
    "router": bool,
    "emulation": dict,
    "engine": dict,
    "aggregated": bool,
    "router_port": int,
    "vllm_args": tuple,
    "prefill_args": tuple,
    "decode_args": tuple,
    "router_args": tuple,
    "startup_timeout_s": float,
}
_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "a mapping"}
