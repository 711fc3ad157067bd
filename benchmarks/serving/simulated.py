"""The simulator's twin of a comparison: the same cluster, profile, requests and policies."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.contenders import Contender
from benchmarks.serving.setting import Setting, workload_of
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ConfigError
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Simulation
from vllm_kairos.simulate.build import build_cluster, build_objectives
from vllm_kairos.simulate.config import OPTIONS, SimulateConfig, make_config
from vllm_kairos.simulate.figures import Figures, figures_of
from vllm_kairos.workload.request import Workload

_HEARD_S = 1.0
_DECISION_OPTIONS = {option.flag: option for option in OPTIONS if option.section == "decision"}
_NETWORK = {"bandwidth_bytes_per_s": ("nic_gb_per_s", 1e-9), "latency_s": ("latency_s", 1.0)}
_ASYNC_SCHEDULING = {"--async-scheduling": True, "--no-async-scheduling": False}
_STEPS = {"bias": "step_factor", "noise": "step_noise"}


def config_of(setting: Setting, spec: ClusterSpec, router_args: Sequence[str] = ()) -> SimulateConfig:
    """What `kairos simulate` would be told, `router_args` over the setting's own.

    Raises ConfigError for a setting that the simulator has no equal of.
    """
    if spec.emulate is None:
        raise ConfigError("cluster: emulate must name a profile to be simulated too, got nothing")
    unknown = set(spec.emulation) - {*_NETWORK, *_STEPS, "seed"}
    unknown_args = [word for word in spec.vllm_args if word not in _ASYNC_SCHEDULING]
    if unknown or unknown_args:
        raise ConfigError(f"cluster: must hold nothing that the simulator has not, got {sorted(unknown) or unknown_args}")
    cluster: dict[str, Any] = {"nodes": f"{spec.prefill}P{spec.decode}D", "profile": spec.emulate}
    cluster["async_scheduling"] = _ASYNC_SCHEDULING[spec.vllm_args[-1]] if spec.vllm_args else True  # as emulated engines
    cluster |= {name: spec.emulation[key] for key, name in _STEPS.items() if key in spec.emulation}
    return make_config(
        {
            "cluster": cluster,
            "network": {name: spec.emulation[key] * by for key, (name, by) in _NETWORK.items() if key in spec.emulation},
            "decision": _decision(setting.router_args) | _decision(router_args),
            "objectives": {"ttft_slo_ms": setting.ttft_slo_ms, "tbt_slo_ms": setting.tbt_slo_ms},
        }
    )


def simulate(setting: Setting, traces: Path | None, contender: Contender, rate_rps: float, repeat: int) -> Figures:
    """Figures of one cell's twin; the contender is our router, alone. Raises ConfigError for several."""
    if contender.processes != 1:
        raise ConfigError(f"{contender.name}: must be one router to be simulated, got {contender.processes}")
    config = config_of(setting, setting.cluster_spec(None), contender.args)
    cluster, objectives = build_cluster(config), build_objectives(config)
    workload = _later(workload_of(setting, traces, rate_rps, repeat))
    built = build_policy(contender.policy, cluster)
    simulation = Simulation(
        cluster, workload, built.policy, objectives=objectives, seed=repeat, truth=built.truth, leases=built.leases
    )
    return figures_of(simulation.run(), objectives)


def shown(figures: Figures) -> dict[str, float | None]:
    """What is compared with measured cells, under their names."""
    return {
        "ttft_p50_s": figures.ttft_s.p50,
        "ttft_p95_s": figures.ttft_s.p95,
        "tbt_p95_s": figures.tbt_s.p95,
        "slo_attainment": figures.slo_attainment,
        "output_tokens_per_s": figures.output_tokens_per_s,
        "deflected_share": figures.deflected / figures.requests if figures.requests else 0.0,
    }


def _decision(words: Sequence[str]) -> dict[str, Any]:
    unknown = [word for word in words[::2] if word not in _DECISION_OPTIONS]
    if unknown:
        known = ", ".join(_DECISION_OPTIONS)
        raise ConfigError(f"router_args: must be pairs of {known} and a value to be simulated too, got {unknown[0]!r}")
    given = [(_DECISION_OPTIONS[flag], value) for flag, value in zip(words[::2], words[1::2], strict=True)]
    return {option.key: option.converted(value, f"router_args: {option.flag}") for option, value in given}


def _later(workload: Workload) -> Workload:
    """The same requests once the router has heard of every node, as after a warm-up."""
    moved = (replace(request, arrival_s=request.arrival_s + _HEARD_S) for request in workload.requests)
    return replace(workload, requests=tuple(moved))
