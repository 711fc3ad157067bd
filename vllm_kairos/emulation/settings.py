"""Settings of an emulated engine: `kairos.emulation` inside vLLM's `--additional-config`."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from vllm_kairos.emulation.faults import Fault, parse_fault
from vllm_kairos.errors import ConfigError
from vllm_kairos.settings_object import Reader, flag, number, read_object, refused, text, whole

_PREFIX = "additional_config.kairos.emulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationSettings:
    """What to emulate. `profile` is a file or the name of a shipped profile.

    Step times are multiplied by `bias` and by seeded noise of standard deviation `noise` (of the
    logarithm). KV moves at `bandwidth_bytes_per_s` out of each prefill node and into each decode
    node, one transfer after the other, each after `latency_s`. The host may take `host_slack_s`
    between steps before that delays the device; see DeviceLine. With `realtime` the engine core runs
    before all ordinary processes where the system allows it: a device does not wait for a CPU.
    `record` is a file for one JSON line per step.
    """

    profile: str
    kv_capacity_tokens: int | None = None
    bias: float = 1.0
    noise: float = 0.0
    seed: int = 0
    bandwidth_bytes_per_s: float = 25e9
    latency_s: float = 0.0005
    host_slack_s: float = 0.010
    idle_poll_s: float = 0.004
    realtime: bool = True
    faults: tuple[Fault, ...] = ()
    record: str | None = None


def parse_emulation(additional_config: Any) -> EmulationSettings:
    """Read the settings; ConfigError names the field, the rule and the value."""
    kairos = additional_config.get("kairos") if isinstance(additional_config, Mapping) else None
    raw = kairos.get("emulation") if isinstance(kairos, Mapping) else None
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{_PREFIX} must be an object that names a profile, got {raw!r}")
    values = read_object(_PREFIX, raw, _READERS)
    if "profile" not in values:
        raise ConfigError(f"{_PREFIX}.profile must name a profile, got none")
    return EmulationSettings(**values)


def _number(least: float, most: float, *, above: bool = False) -> Reader:
    bounds = f"{'>' if above else '>='} {least:g}" + (f" and <= {most:g}" if isfinite(most) else "")
    return number(
        f"a finite number {bounds}",
        lambda value: isfinite(value) and least <= value <= most and not (above and value == least),
    )


def _faults(name: str, value: Any) -> tuple[Fault, ...]:
    if not isinstance(value, list):
        raise refused(name, "a list", value)
    return tuple(parse_fault(each, where=f"{name}[{index}]") for index, each in enumerate(value))


_READERS: dict[str, Reader] = {
    "profile": text,
    "kv_capacity_tokens": whole(1, 2**40),
    "bias": _number(0, 1000, above=True),
    "noise": _number(0, 2),
    "seed": whole(0),
    "bandwidth_bytes_per_s": _number(0, inf, above=True),
    "latency_s": _number(0, 60),
    "host_slack_s": _number(0, 1),
    "idle_poll_s": _number(0.0005, 1),
    "realtime": flag,
    "faults": _faults,
    "record": text,
}
