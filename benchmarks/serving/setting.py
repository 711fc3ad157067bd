"""What a comparison runs: a YAML file of settings, checked, and the requests that it means."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Self

import yaml

from vllm_kairos.cluster.spec import ClusterSpec, make_spec
from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.workload import generate, load_trace, transforms
from vllm_kairos.workload.request import TraceRequest, Workload

PRESETS = Path(__file__).with_name("settings")


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
        if not self.rates_rps or min(self.rates_rps) <= 0:
            raise ConfigError(f"rates_rps must be numbers > 0, at least one, got {list(self.rates_rps)}")
        for name in ("duration_s", "ttft_slo_ms", "tbt_slo_ms"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number > 0, got {getattr(self, name)}")

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
        if not isinstance(raw, dict) or not isinstance(raw.get("load"), dict):
            raise ConfigError(f"{path}: must be a mapping with a mapping `load`, got {type(raw).__name__}")
        _known(path, "", raw, cls)
        _known(path, "load: ", raw["load"], Load)
        lists = {key: tuple(raw[key]) for key in ("rates_rps", "contenders", "router_args") if key in raw}
        try:
            return cls(**{"name": Path(path).stem, **raw, **lists, "load": Load(**raw["load"])})
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}") from None

    def cluster_spec(self, log_dir: Path | None) -> ClusterSpec:
        """The servers alone, for LocalCluster. Raises ConfigError."""
        lists = {key: tuple(value) for key, value in self.cluster.items() if isinstance(value, list)}
        extra = {"router": False, "router_args": self.router_args, "log_dir": None if log_dir is None else str(log_dir)}
        try:
            return make_spec({**self.cluster, **lists, **extra})
        except TypeError as error:
            raise ConfigError(f"cluster: {error}") from None

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
    except (OSError, ValueError, yaml.YAMLError) as error:
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


def _known(path: Path | str, prefix: str, raw: Mapping[str, Any], kind: type) -> None:
    names = [each.name for each in fields(kind)]
    for key in raw:
        if key not in names:
            raise ConfigError(f"{path}: {prefix}{key}: no such setting; known are {', '.join(names)}")
