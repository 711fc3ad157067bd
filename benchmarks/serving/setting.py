"""What a comparison runs: a YAML file of settings, checked, and the requests that it means."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Self

import yaml

from vllm_kairos.cluster.spec import ClusterSpec, make_spec, settings_of
from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.settings_object import Reader, number, refused, text, whole
from vllm_kairos.workload import generate, load_trace, transforms
from vllm_kairos.workload.request import TraceRequest, Workload

PRESETS = Path(__file__).with_name("settings")
_MOST_REQUESTS = 1_000_000  # of a cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Where requests come from: one of the paper's workloads by name, or a slice of a trace file.

    Each repeat draws its own (`workload`), or takes the next stretch of the slice (`trace`, relative to the folder of
    traces): repeats then differ by luck of bursts as well as by the machine, and no result rests on one draw.
    Lengths are multiplied by the scales, for models smaller than those that the load is of.
    """

    workload: str | None = None
    scv: float | None = None
    trace: str | None = None
    slice_start_s: float = 0.0
    prompt_scale: float = 1.0
    output_scale: float = 1.0
    max_prompt_tokens: int | None = None
    spread_s: float = 0.0
    max_gap_s: float | None = None

    def __post_init__(self) -> None:
        if (self.workload is None) == (self.trace is None):
            raise ConfigError("load: must be given as workload or as trace, got neither or both")
        for name in ("prompt_scale", "output_scale"):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"load: {name} must be a finite number > 0, got {getattr(self, name)}")

    @classmethod
    def of(cls, place: str, raw: Any) -> Self:
        """Build it from what the file says of it. Raises ConfigError."""
        if not isinstance(raw, dict):
            raise ConfigError(f"{place}must be a mapping with a mapping `load`, got {raw!r}")
        return cls(**_read(f"{place}load: ", raw, _LOAD_READERS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A comparison. `cluster` holds settings of `kairos up`; a cell sends rate x duration_s requests, or `requests`.

    With `requests`, cells of one repeat send the same requests at every rate, and those of low rates last longer.
    """

    name: str
    title: str
    cluster: Mapping[str, Any]
    load: Load
    rates_rps: tuple[float, ...]
    duration_s: float = 40.0
    requests: int | None = None
    ttft_slo_ms: float = 4000.0
    tbt_slo_ms: float = 70.0
    contenders: tuple[str, ...] = ()
    router_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = {f"{rate_rps:g}" for rate_rps in self.rates_rps}  # as cells are called
        if not names or len(names) < len(self.rates_rps) or not all(0 < rate_rps < inf for rate_rps in self.rates_rps):
            rule = "finite numbers > 0, at least one and all different in six digits"
            raise ConfigError(f"rates_rps must be {rule}, got {list(self.rates_rps)}")
        for name in ("duration_s", "ttft_slo_ms", "tbt_slo_ms"):
            if not 0 < getattr(self, name) < inf:
                raise ConfigError(f"{name} must be a finite number > 0, got {getattr(self, name)}")

        if self.requests is None and max(self.rates_rps) * self.duration_s > _MOST_REQUESTS:
            got = f"{max(self.rates_rps):g} for {self.duration_s:g} s"
            raise ConfigError(f"rates_rps times duration_s must be <= {_MOST_REQUESTS}, got {got}")

    @property
    def objectives(self) -> Objectives:
        """In seconds."""
        return Objectives(ttft_s=self.ttft_slo_ms / 1e3, tbt_s=self.tbt_slo_ms / 1e3)

    @classmethod
    def read(cls, name: str) -> Self:
        """Read a preset by name or a file by path. Raises ConfigError naming file, key, rule and value."""
        path, raw = read_yaml(PRESETS, name)
        return cls.of(path, raw)

    @classmethod
    def of(cls, path: Path | str, raw: Any) -> Self:
        """Build it from the file's content. Raises ConfigError."""
        place = f"{path}: "
        if not isinstance(raw, dict):
            raise ConfigError(f"{place}must be a mapping with a mapping `load`, got {raw!r}")
        load = Load.of(place, raw.get("load"))
        values = _read(place, {key: value for key, value in raw.items() if key != "load"}, _READERS)
        missing = [name for name in ("title", "cluster", "rates_rps") if name not in values]
        if missing:
            raise ConfigError(f"{place}{missing[0]} must be given, got none")
        try:
            return cls(**{"name": Path(path).stem, **values, "load": load})
        except ConfigError as error:
            raise ConfigError(f"{place}{error}") from None

    def cluster_spec(self, log_dir: Path | None) -> ClusterSpec:
        """The servers alone, for LocalCluster. Raises ConfigError."""
        extra = {"router": False, "router_args": self.router_args, "log_dir": None if log_dir is None else str(log_dir)}
        return make_spec({**settings_of(f"{self.name}: cluster", self.cluster), **extra})

    def requests_at(self, rate_rps: float) -> int:
        """How many requests a cell of this rate sends."""
        return max(2, round(rate_rps * self.duration_s) if self.requests is None else self.requests)

    def lasts_s(self, rate_rps: float) -> float:
        """How long a cell of this rate sends."""
        return self.requests_at(rate_rps) / rate_rps


def preset_names(presets: Path = PRESETS) -> list[str]:
    """Names of the settings in the folder."""
    return sorted(path.stem for path in presets.glob("*.yaml"))


def read_yaml(presets: Path, name: str) -> tuple[Path, Any]:
    """The file that `name`, a preset or a path, stands for, and what it says. Raises ConfigError."""
    path = presets / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    try:
        return path, yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        known = ", ".join(preset_names(presets))
        raise ConfigError(f"setting must be a YAML file or one of {known}, got {name!r}: {error}") from None


def workload_of(setting: Setting, traces: Path | None, rate_rps: float, repeat: int) -> Workload:
    """The requests of every cell of this rate and repeat, with their objectives. Raises ConfigError or WorkloadError."""
    load, count = setting.load, setting.requests_at(rate_rps)
    if load.workload is not None:
        workload = _shaped(generate(load.workload, requests=count, seed=repeat, rate_rps=rate_rps, scv=load.scv), load, repeat)
    else:
        stretch = _stretch(_trace(load, traces), repeat * count, count)
        workload = transforms.at_rate(_shaped(stretch, load, repeat), rate_rps)
    return transforms.with_slo(workload, ttft_slo_s=setting.ttft_slo_ms / 1e3, tbt_slo_s=setting.tbt_slo_ms / 1e3)


def _trace(load: Load, traces: Path | None) -> Workload:
    assert load.trace is not None
    if traces is None:
        raise ConfigError(f"--traces (or KAIROS_TRACES) must name the folder that holds {load.trace}, got nothing")
    whole = _whole(traces / load.trace)
    return transforms.sliced(whole, load.slice_start_s, float("inf")) if load.slice_start_s else whole


@cache
def _whole(path: Path) -> Workload:
    return load_trace(path, closed_loop=False)


def _stretch(workload: Workload, start: int, count: int) -> Workload:
    requests = workload.requests[start : start + count]
    if len(requests) < count:
        raise ConfigError(f"load: the slice must have {start + count} requests, got {len(workload.requests)}")
    return replace(workload, requests=requests)


def _shaped(workload: Workload, load: Load, seed: int) -> Workload:
    workload = replace(workload, requests=tuple(_resized(one, load) for one in workload.requests))
    if load.max_prompt_tokens is not None:
        workload = transforms.with_prompt_limit(workload, load.max_prompt_tokens, "clip")
    if load.spread_s:
        workload = transforms.spread(workload, load.spread_s, seed)
    return workload if load.max_gap_s is None else transforms.capped_gaps(workload, load.max_gap_s)


def _resized(request: TraceRequest, load: Load) -> TraceRequest:
    prompt, output = request.prompt_tokens * load.prompt_scale, request.output_tokens * load.output_scale
    return replace(request, prompt_tokens=max(1, round(prompt)), output_tokens=max(1, round(output)))


def _read(place: str, raw: Mapping[Any, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """What the file says there, null being as good as nothing. Raises ConfigError naming the key, the rule and the value."""
    for key in raw:
        if key not in readers:
            raise ConfigError(f"{place}{key}: no such setting; known are {', '.join([*readers])}")
    return {key: readers[key](f"{place}{key}", value) for key, value in raw.items() if value is not None}


def _list_of(item: Reader, what: str) -> Reader:
    """Make a reader of lists."""

    def read(name: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise refused(name, f"a list of {what}", value)
        return tuple(item(f"{name}[{at}]", each) for at, each in enumerate(value))

    return read


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise refused(name, "a mapping", value)
    settings_of(name, value)  # each of its own kind
    return value


_ABOVE_0 = number("a finite number > 0", lambda value: 0 < value < inf)
_FROM_0 = number("a finite number >= 0", lambda value: 0 <= value < inf)
_LOAD_READERS: Mapping[str, Reader] = {
    "workload": text,
    "scv": _FROM_0,
    "trace": text,
    "slice_start_s": _FROM_0,
    "prompt_scale": _ABOVE_0,
    "output_scale": _ABOVE_0,
    "max_prompt_tokens": whole(1),
    "spread_s": _FROM_0,
    "max_gap_s": _FROM_0,
}
_READERS: Mapping[str, Reader] = {
    "name": text,
    "title": text,
    "cluster": _mapping,
    "rates_rps": _list_of(_ABOVE_0, "numbers"),
    "duration_s": _ABOVE_0,
    "requests": whole(1, _MOST_REQUESTS),
    "ttft_slo_ms": _ABOVE_0,
    "tbt_slo_ms": _ABOVE_0,
    "contenders": _list_of(text, "names"),
    "router_args": _list_of(text, "words"),
}
