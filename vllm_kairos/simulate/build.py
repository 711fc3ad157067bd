"""From a configuration to what the simulator runs: engines, network and load."""

from dataclasses import replace
from math import inf

from vllm_kairos.core.governor import MEASURED, GovernorMode, GovernorSettings, Objective
from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.core.node import Role
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import Profile, load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.network import TwoTierTopology
from vllm_kairos.sim.record import Objectives
from vllm_kairos.simulate.config import NodeCounts, SimulateConfig
from vllm_kairos.simulate.sections import (
    ClusterConfig,
    NetworkConfig,
    ObjectivesConfig,
    WorkloadConfig,
    require,
    require_governable,
)
from vllm_kairos.workload import transforms
from vllm_kairos.workload.generate import generate
from vllm_kairos.workload.load import draws_arrivals, load_trace
from vllm_kairos.workload.request import Workload

_REQUESTS_DRAWN = 1000
_UNPLANNED_CHUNK_TOKENS = 512  # the engine plugin's own default
_MOST_RUNNING_REQUESTS = 256  # vLLM's own default


def build_cluster(config: SimulateConfig) -> ClusterSpec:
    """The cluster that `config` describes. Raises ConfigError, ProfileError or SimulationError."""
    cluster, counts = config.cluster, NodeCounts.parse(config.cluster.nodes)
    prefill = load_profile(resolve_profile(cluster.prefill_profile or cluster.profile))
    decode = load_profile(resolve_profile(cluster.decode_profile or cluster.profile))
    engines = [
        *(_engine(config, prefill, Role.PREFILL, f"p{at}") for at in range(counts.prefill)),
        *(_engine(config, decode, Role.DECODE, f"d{at}") for at in range(counts.decode)),
        *(_engine(config, decode, Role.BOTH, f"b{at}") for at in range(counts.both)),
    ]
    return ClusterSpec(
        engines=tuple(engines),
        prefill_model=prefill.step_model,
        decode_model=decode.step_model,
        topology=_topology(config.network, {engine.name for engine in engines}),
        router=config.router,
        settings=_settings(config, decode),
        leases=_leases(config),
    )


def build_objectives(config: SimulateConfig) -> Objectives:
    """The objectives in seconds."""
    given = config.objectives
    return Objectives(ttft_s=given.ttft_slo_ms / 1e3, tbt_s=given.tbt_slo_ms / 1e3, tpot_s=_seconds(given.tpot_slo_ms))


def build_workload(config: WorkloadConfig, rate_rps: float | None, seed: int) -> Workload:
    """The load at `rate_rps`, or at its own rate. Raises ConfigError or WorkloadError."""
    if config.generate is not None:
        requests = _REQUESTS_DRAWN if config.requests is None else config.requests
        drawn = generate(config.generate, requests=requests, seed=seed, rate_rps=rate_rps, scv=config.scv)
        shaped = _shaped(drawn, config, seed)
        # Drawn gaps have their rate in the mean; only what was made of them has to be brought back to it.
        return _at_speed(shaped, config.speed, None if shaped is drawn else rate_rps)
    if config.trace is None:
        raise ConfigError("workload must be given: --trace FILE or --workload NAME")
    drawn_at_rps = rate_rps if _draws_arrivals(config) else None
    if config.scv is not None and not _draws_arrivals(config):
        raise ConfigError(f"workload: scv must be left out for a trace with arrival times, got {config.scv:g}")
    scv = 1.0 if config.scv is None else config.scv
    workload = load_trace(
        config.trace, format=config.format, rate_rps=drawn_at_rps, scv=scv, seed=seed, closed_loop=config.closed_loop
    )
    return _at_speed(_shaped(workload, config, seed), config.speed, rate_rps)


def _draws_arrivals(config: WorkloadConfig) -> bool:
    assert config.trace is not None
    return draws_arrivals(config.trace, config.format)


def _shaped(workload: Workload, config: WorkloadConfig, seed: int) -> Workload:
    if config.slice_start_s or config.slice_duration_s is not None:
        workload = transforms.sliced(workload, config.slice_start_s, config.slice_duration_s or inf)
    if config.limit is not None:
        workload = transforms.first(workload, config.limit)
    if config.max_prompt_tokens is not None:
        workload = transforms.with_prompt_limit(workload, config.max_prompt_tokens, config.long_prompts)
    if config.spread_s:
        workload = transforms.spread(workload, config.spread_s, seed)
    return workload if config.gap_cap_s is None else transforms.capped_gaps(workload, config.gap_cap_s)


def _at_speed(workload: Workload, speed: float, rate_rps: float | None) -> Workload:
    if rate_rps is not None:
        return transforms.at_rate(workload, rate_rps)
    return workload if speed == 1 else transforms.scaled(workload, speed)


def _engine(config: SimulateConfig, profile: Profile, role: Role, name: str) -> EngineSpec:
    cluster = config.cluster
    block_tokens = profile.block_size_tokens if cluster.block_size_tokens is None else cluster.block_size_tokens
    budget = cluster.prefill_budget_tokens if role is Role.PREFILL else cluster.decode_budget_tokens
    budget_tokens = profile.token_budget_tokens if budget is None else budget
    most = min(_MOST_RUNNING_REQUESTS, budget_tokens) if cluster.max_num_seqs is None else cluster.max_num_seqs
    kv_tokens = _kv_tokens(cluster, profile)
    require("cluster: kv_tokens", kv_tokens, kv_tokens >= block_tokens, f">= block_size_tokens ({block_tokens})")
    require("cluster: max_num_seqs", most, most <= budget_tokens, f"<= the token budget of a step on {name} ({budget_tokens})")
    return EngineSpec(
        name=name,
        role=role,
        model=profile.step_model,
        kv_blocks=kv_tokens // block_tokens,
        token_budget_tokens=budget_tokens,
        max_running_requests=most,
        block_size_tokens=block_tokens,
        kv_bytes_per_token=profile.kv_bytes_per_token,
        default_chunk_tokens=_default_chunk_tokens(config) or None,
        governor=_governor(config),
        prefix_caching=cluster.prefix_caching,
        async_scheduling=cluster.async_scheduling,
        frontend_s=cluster.frontend_s,
        step_factor=cluster.step_factor,
        step_noise=cluster.step_noise,
    )


def _default_chunk_tokens(config: SimulateConfig) -> int:
    """0: none."""
    chosen = config.cluster.default_chunk_tokens
    if chosen is None:
        return 0 if config.governor.mode is not None else _UNPLANNED_CHUNK_TOKENS
    return chosen


def _governor(config: SimulateConfig) -> GovernorSettings | None:
    given = config.governor
    if given.mode is None:
        return None
    objective = Objective(_seconds(given.tbt_slo_ms), _seconds(given.tpot_slo_ms))
    if objective == Objective():
        objective = _load_objective(config.objectives)
    return GovernorSettings(
        mode=GovernorMode(given.mode),
        objective=objective,
        beta=MEASURED if isinstance(given.beta, str) else given.beta,
        starvation_s=given.starvation_s,
        ttft_slo_s=_seconds(given.ttft_slo_ms),
        patience_tokens=given.patience_tokens,
    )


def _load_objective(given: ObjectivesConfig) -> Objective:
    """What a governor without an objective of its own goes by."""
    name = "tbt_slo_ms" if given.tpot_slo_ms is None else "tpot_slo_ms"
    require_governable(f"objectives: {name}", getattr(given, name), " where the governor goes by it")
    return Objective(tbt_s=given.tbt_slo_ms / 1e3) if given.tpot_slo_ms is None else Objective(tpot_s=given.tpot_slo_ms / 1e3)


def _leases(config: SimulateConfig) -> LeaseSettings:
    """What nobody set is as in the engine plugin: the governor's objective, or that of the load."""
    given, governor = config.leases, _governor(config)
    objective = Objective() if governor is None else governor.objective
    tbt_slo_s = _seconds(given.tbt_slo_ms) or objective.tbt_s or objective.tpot_s or build_objectives(config).tbt_s
    beta = config.decision.beta if given.beta is None else given.beta
    return LeaseSettings(ttl_s=given.ttl_s, horizon_s=given.horizon_s, tbt_slo_s=tbt_slo_s, beta=beta)


def _seconds(value_ms: float | None) -> float | None:
    return None if value_ms is None else value_ms / 1e3


def _kv_tokens(cluster: ClusterConfig, profile: Profile) -> int:
    if cluster.kv_tokens is not None:
        return cluster.kv_tokens
    if not profile.kv_capacity_tokens:
        raise ConfigError(f"cluster: kv_tokens must be given: the profile of {profile.model!r} does not say, got nothing")
    return profile.kv_capacity_tokens


def _topology(network: NetworkConfig, names: set[str]) -> TwoTierTopology:
    unknown = sorted(set(network.racks) - names)
    if unknown:
        raise ConfigError(f"network: racks must name nodes of the cluster ({', '.join(sorted(names))}), got {unknown[0]!r}")
    return TwoTierTopology(
        nic_bytes_per_s=network.nic_gb_per_s * 1e9,
        flow_bytes_per_s=inf if network.flow_gb_per_s is None else network.flow_gb_per_s * 1e9,
        latency_s=network.latency_s,
        racks=network.racks,
        uplink_bytes_per_s=network.uplink_gb_per_s * 1e9,
        cross_latency_s=network.cross_latency_s,
    )


def _settings(config: SimulateConfig, profile: Profile) -> DecisionSettings:
    """What nobody set follows from the profile and the engines, as in the router."""
    given, defaults = config.decision, DecisionSettings()
    follows = {
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "chunk_candidates_tokens": profile.chunk_candidates_tokens,
        "unplanned_chunk_tokens": _default_chunk_tokens(config) or defaults.unplanned_chunk_tokens,
    }
    unset = {name: value for name, value in follows.items() if getattr(given, name) == getattr(defaults, name)}
    return replace(given, **unset)  # type: ignore[arg-type]
