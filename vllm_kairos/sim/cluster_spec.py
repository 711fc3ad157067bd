"""A cluster to simulate: engines, the network between them, and the router in front."""

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.network import Topology, TwoTierTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """The router and its node-state feed. Raises SimulationError naming field, rule and value."""

    heartbeat_period_s: float = 0.1
    heartbeat_delay_s: float = 0.001
    heartbeat_loss: float = 0.0  # share of reports that never arrive
    decision_latency_s: float = 0.0005
    hop_s: float = 0.0005  # router to engine, and back
    stale_after_s: float = 1.0
    settle_s: float = 0.05
    prefix_aware: bool = False  # whether it knows what each engine has cached

    def __post_init__(self) -> None:
        _require(
            "heartbeat_period_s", self.heartbeat_period_s, 1e-3 <= self.heartbeat_period_s < inf, "a finite number >= 0.001"
        )
        _require("stale_after_s", self.stale_after_s, 0 < self.stale_after_s < inf, "a finite number > 0")
        for name in ("heartbeat_delay_s", "decision_latency_s", "hop_s", "settle_s"):
            _require(name, getattr(self, name), 0 <= getattr(self, name) < inf, "a finite number >= 0")
        _require("heartbeat_loss", self.heartbeat_loss, 0 <= self.heartbeat_loss < 1, "in [0, 1)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """Everything about a cluster but its load and its policy.

    `prefill_model` and `decode_model` are what the router predicts with; None: it has no profile. `leases` is what decode
    nodes grant by, under a policy that spends leases; None: by the defaults, and the decisions' beta.
    """

    engines: tuple[EngineSpec, ...]
    prefill_model: StepLatencyModel | None = None
    decode_model: StepLatencyModel | None = None
    topology: Topology = field(default_factory=TwoTierTopology)
    router: RouterSpec = field(default_factory=RouterSpec)
    settings: DecisionSettings = field(default_factory=DecisionSettings)
    leases: LeaseSettings | None = None

    def __post_init__(self) -> None:
        names = Counter(engine.name for engine in self.engines)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise SimulationError(f"cluster: node names must differ, got {twice[0]!r} twice")
        if not any(engine.role.decodes for engine in self.engines):
            raise SimulationError(f"cluster: decode nodes must be >= 1, got 0 of {len(self.engines)} nodes")


def _require(name: str, value: float, holds: bool, rule: str) -> None:
    if not holds:
        raise SimulationError(f"router: {name} must be {rule}, got {value}")
