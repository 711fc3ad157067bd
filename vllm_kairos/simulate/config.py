"""One frozen SimulateConfig from a YAML file and the flags that override it."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import ConfigError, KairosError
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.simulate.options import Values, merged, options_of, read_yaml
from vllm_kairos.simulate.sections import (
    ClusterConfig,
    GovernorConfig,
    LeasesConfig,
    NetworkConfig,
    ObjectivesConfig,
    SweepConfig,
    WorkloadConfig,
)

SECTIONS: dict[str, type] = {
    "cluster": ClusterConfig,
    "network": NetworkConfig,
    "router": RouterSpec,
    "decision": DecisionSettings,
    "governor": GovernorConfig,
    "leases": LeasesConfig,
    "objectives": ObjectivesConfig,
    "workload": WorkloadConfig,
    "sweep": SweepConfig,
}
_ABOUT = {
    "heartbeat_period_s": "time between a node's reports",
    "heartbeat_delay_s": "time a report takes to the router",
    "heartbeat_loss": "share of reports that never arrive",
    "decision_latency_s": "time a decision takes",
    "hop_s": "time from the router to an engine, and back",
    "stale_after_s": "age at which a node's state counts as stale",
    "settle_s": "time after which a report shows what was sent before it",
    "prefix_aware": "the router knows what each engine has cached",
    "alpha": "deflect a prompt later than the prefill path by up to this, less 1, times the prefill queue's wait",
    "beta": "share of the TBT objective that a predicted step may fill",
    "chunk_candidates_tokens": "batch sizes a deflected prompt may run in",
    "deflection_slot_share": "share of the requests it may run from which on a decode node takes no deflected prompt",
    "deflections_per_node": "deflected prompts that a decode node may have at a time",
    "static_chunk_tokens": "chunk of the policies that make no prediction",
    "unplanned_chunk_tokens": "what the router takes default_chunk_tokens to be; unset: what it is",
    "output_reserve_tokens": "KV tokens kept free for a deflected request's output",
    "default_bandwidth_bytes_per_s": "transfer rate assumed for a pair that none was measured for",
    "kv_bytes_per_token": "KV size the router assumes; unset: the profile's",
    "prefill_unavailable": "with no prefill node left: fail, deflect-bounded or deflect",
    "retry_after_s": "what a refusal that will pass tells the client to wait",
}
OPTIONS = options_of(SECTIONS, _ABOUT)
_OTHERS = ("plan",)  # so that one file serves a simulation and a plan
MOST_NODES = 10_000
_NODES = re.compile(r"(?:([0-9]{1,5})P)?(?:([0-9]{1,5})D)?(?:([0-9]{1,5})B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateConfig:
    """Everything that decides what a sweep's figures are."""

    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    router: RouterSpec = field(default_factory=RouterSpec)
    decision: DecisionSettings = field(default_factory=DecisionSettings)
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    leases: LeasesConfig = field(default_factory=LeasesConfig)
    objectives: ObjectivesConfig = field(default_factory=ObjectivesConfig)
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)

    def __post_init__(self) -> None:
        if self.sweep.rates and self.workload.speed != 1:
            raise ConfigError(f"workload: speed must be left out where rates are given, got {self.workload.speed:g}")

    def as_json(self) -> dict[str, Any]:
        """Every setting by section and key, as the YAML file has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many nodes there are of each role."""

    prefill: int
    decode: int
    both: int = 0

    @classmethod
    def parse(cls, text: str) -> "NodeCounts":
        """Read `2P2D`, `4B`, `2P1D1B`. Raises ConfigError."""
        found = _NODES.fullmatch(text.strip())
        if not text.strip() or found is None:
            raise ConfigError(f"nodes must be counts by role as in 2P2D or 1P2D1B, got {text!r}")
        prefill, decode, both = (int(count or 0) for count in found.groups())
        if decode + both < 1:
            raise ConfigError(f"nodes must have >= 1 that decode, as in 2P2D, got {text!r}")
        if prefill + decode + both > MOST_NODES:
            raise ConfigError(f"nodes must be <= {MOST_NODES} in all, got {text!r}")
        return cls(prefill, decode, both)

    def __str__(self) -> str:
        counts = ((self.prefill, "P"), (self.decode, "D"), (self.both, "B"))
        return "".join(f"{count}{letter}" for count, letter in counts if count)


def make_config(values: Values) -> SimulateConfig:
    """Build the configuration. Raises ConfigError naming the section, field, rule and value."""
    built = {name: build_section(name, kind, values.get(name, {})) for name, kind in SECTIONS.items()}
    config = SimulateConfig(**built)
    NodeCounts.parse(config.cluster.nodes)
    return config


def load_config(path: Path | None, flags: Values) -> SimulateConfig:
    """Read the file, if any, and let flags override it."""
    return make_config(load_values(path, flags))


def load_values(path: Path | None, flags: Values) -> Values:
    """What the file, if any, and the flags over it set."""
    return merged(read_yaml(path, OPTIONS, others=_OTHERS) if path is not None else {}, flags)


def build_section(name: str, make: Callable[..., Any], values: dict[str, Any]) -> Any:
    """What `make` builds of `values`. Raises ConfigError that begins with the section's name."""
    try:
        return make(**values)
    except KairosError as error:
        text = str(error)
        raise ConfigError(text if text.startswith(f"{name}: ") else f"{name}: {text}") from error
