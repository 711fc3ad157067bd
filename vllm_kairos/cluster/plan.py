"""From a spec to the exact processes: names, ports, command lines, environments."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_kairos.cluster import emulated
from vllm_kairos.cluster.machine import HOST, choose_ports, parse_cpus, spread_cpus
from vllm_kairos.cluster.model import find_model
from vllm_kairos.cluster.spec import ClusterSpec, Device, Scheduler
from vllm_kairos.engine.settings import SETTINGS_KEY, parse_settings
from vllm_kairos.errors import ConfigError

Pin = str | frozenset[int]
"""CUDA devices as vLLM's environment names them, or CPUs."""

PORTS_PER_SERVER = 3
FORK_SERVER = "fork-server"
ROUTER_PORTS = 2

# Measured on two cores: NIXL's progress thread spins unless told to pause, and vLLM's own binding puts
# every server on the same cores.
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "UCX_TLS": "tcp,sm,self",
    "UCX_NET_DEVICES": "lo",
    "KAIROS_NIXL_PROGRESS_DELAY_US": "2000",
}
_CPU_FLAGS = ("--enforce-eager", "--block-size", "32", "--max-model-len", "4096", "--max-num-seqs", "16")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process to start; `environment` is added to the caller's, `cpus` empty means unpinned."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    port: int
    cpus: frozenset[int] = frozenset()

    @property
    def url(self) -> str:
        """Where it serves HTTP."""
        return f"http://{HOST}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """All servers of a cluster, and what its router needs to know of them.

    With a `fork_server` it starts the servers, instead of each starting by itself.
    """

    prefill: tuple[ProcessPlan, ...]
    decode: tuple[ProcessPlan, ...]
    model: str
    served_model_name: str
    router_port: int
    metrics_port: int
    fork_server: ProcessPlan | None = None

    @property
    def servers(self) -> tuple[ProcessPlan, ...]:
        """Prefill servers first."""
        return self.prefill + self.decode


def make_plan(spec: ClusterSpec) -> ClusterPlan:
    """Choose ports and write every server's command line. Raises ClusterError or ConfigError."""
    model = find_model(spec.model)
    served = spec.served_model_name or emulated.served_name(spec) or Path(model).name
    ports = iter(choose_ports(PORTS_PER_SERVER * spec.servers + ROUTER_PORTS, spec.base_port))
    router_port = choose_ports(1, spec.router_port)[0] if spec.router_port else next(ports)
    metrics_port = next(ports)
    names = [f"p{index}" for index in range(spec.prefill)] + [f"d{index}" for index in range(spec.decode)]
    common = _common_flags(spec, model, served)
    servers = [_server(spec, name, common, ports, pin) for name, pin in zip(names, _pins(spec), strict=True)]
    return ClusterPlan(
        prefill=tuple(servers[: spec.prefill]),
        decode=tuple(servers[spec.prefill :]),
        model=model,
        served_model_name=served,
        router_port=router_port,
        metrics_port=metrics_port,
        fork_server=_fork_server(spec, servers[0]),
    )


def router_plan(spec: ClusterSpec, plan: ClusterPlan, *, policy: str | None, log_dir: Path) -> ProcessPlan:
    """The router in front of `plan`."""
    workers = [word for server in plan.prefill for word in ("--prefill", server.url)]
    workers += [word for server in plan.decode for word in ("--decode", server.url)]
    flags = ["--host", HOST, "--port", str(plan.router_port), "--prometheus-port", str(plan.metrics_port)]
    flags += ["--log-dir", str(log_dir), "--decision-headers"]
    if (Path(plan.model) / "tokenizer.json").is_file():
        flags += ["--tokenizer", plan.model]
    profile = spec.profile or emulated.profile_path(spec)
    if profile is not None:
        flags += ["--profile", str(Path(profile).absolute())]
    if policy is not None:
        flags += ["--deflect-policy", policy]
    argv = (sys.executable, "-m", "vllm_kairos", "router", *workers, *flags, *spec.router_args)
    return ProcessPlan(name="router", argv=argv, environment={}, port=plan.router_port)


def _fork_server(spec: ClusterSpec, server: ProcessPlan) -> ProcessPlan | None:
    """A process that is ready to become any of the servers; what differs between them comes with each."""
    if spec.emulate is None:
        return None
    argv = (sys.executable, "-m", emulated.FORK_SERVER_MODULE)
    return ProcessPlan(name=FORK_SERVER, argv=argv, environment=server.environment, port=0)


def _server(spec: ClusterSpec, name: str, common: Sequence[str], ports: Iterator[int], pin: Pin) -> ProcessPlan:
    port, side_channel_port, state_port = next(ports), next(ports), next(ports)
    role = "prefill" if name.startswith("p") else "decode"
    argv = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *common, "--port", str(port)]
    settings = emulated.engine_settings(spec, name)
    if not spec.aggregated:
        argv += ["--kv-transfer-config", json.dumps(_transfer_config(spec, role))]
    if spec.scheduler is Scheduler.KAIROS:
        if not spec.aggregated:
            settings |= {"node_id": name, "role": role, "state_endpoint": f"tcp://{HOST}:{state_port}"}
        settings |= _engine_settings(spec, name, settings)
        _check(name, settings)
        argv += ["--scheduler-cls", "vllm_kairos.KairosScheduler"]
    if settings:
        argv += ["--additional-config", json.dumps({SETTINGS_KEY: settings})]
    return ProcessPlan(
        name=name,
        argv=(*argv, *spec.vllm_args, *(spec.prefill_args if role == "prefill" else spec.decode_args)),
        environment={"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port)} | _environment(spec, pin),
        port=port,
        cpus=pin if isinstance(pin, frozenset) else frozenset(),
    )


def _engine_settings(spec: ClusterSpec, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The server's own `engine`: no two servers write steps to the same file. Raises ConfigError for what is `given`."""
    settings = dict(spec.engine)
    taken = next((each for each in settings if each in given), None)
    if taken is not None:
        raise ConfigError(f"engine.{taken} must be left out: every server is given its own, got {settings[taken]!r}")
    record = settings.get("step_record")
    if isinstance(record, Mapping) and isinstance(record.get("file"), str):
        settings["step_record"] = {**record, "file": f"{record['file']}.{name}"}
    return settings


def _check(name: str, settings: Mapping[str, Any]) -> None:
    """Refuse what the server would refuse half a minute later, in its log. Raises ConfigError."""
    try:
        parse_settings({SETTINGS_KEY: settings})
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _common_flags(spec: ClusterSpec, model: str, served: str) -> list[str]:
    flags = ["--model", model, "--served-model-name", served, "--host", HOST]
    if spec.emulate is not None:
        return [*flags, *emulated.flags(spec)]
    dtype = spec.dtype or ("bfloat16" if spec.device is Device.CPU else "auto")
    return [*flags, "--dtype", dtype, *(_CPU_FLAGS if spec.device is Device.CPU else ())]


def _transfer_config(spec: ClusterSpec, role: str) -> dict[str, Any]:
    connector = "KairosNixlConnector" if spec.scheduler is Scheduler.KAIROS else "NixlConnector"
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_producer" if role == "prefill" else "kv_consumer"}
    if spec.emulate is not None:
        return config | emulated.connector(is_wrapped=spec.scheduler is Scheduler.KAIROS)
    return config | ({"kv_buffer_device": "cpu"} if spec.device is Device.CPU else {})


def _environment(spec: ClusterSpec, pin: Pin) -> dict[str, str]:
    # vLLM loads a plugin that adds an HTTP route only when it is named.
    quiet = {"VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": os.environ.get("VLLM_PLUGINS") or "kairos"}
    if spec.model is None or Path(spec.model).expanduser().is_dir():
        quiet["HF_HUB_OFFLINE"] = "1"
    if spec.emulate is not None:
        return quiet | emulated.environment(quiet["VLLM_PLUGINS"])
    if isinstance(pin, str):
        return {"CUDA_VISIBLE_DEVICES": pin} | quiet
    threads = {"OMP_NUM_THREADS": str(len(pin)), "VLLM_CPU_KVCACHE_SPACE": str(spec.kv_cache_gib)}
    return _CPU_ENVIRONMENT | threads | quiet


def _pins(spec: ClusterSpec) -> Sequence[Pin]:
    if spec.emulate is not None and not spec.pins:
        return [frozenset()] * spec.servers  # they mostly sleep: the kernel places them best
    if spec.device is Device.CPU:
        return [parse_cpus(pin) for pin in spec.pins] if spec.pins else spread_cpus(spec.servers)
    pins = spec.pins or tuple(str(index) for index in range(spec.servers))
    for pin in pins:
        if not all(part.strip().isdecimal() for part in pin.split(",")):
            raise ConfigError(f"pins must be CUDA device numbers as in 0,1, got {pin!r}")
    return pins
