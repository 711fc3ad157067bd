"""What a simulation is made of, in sections whose fields are flags and YAML keys alike."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, Literal

from vllm_kairos.core.governor import MEASURED, GovernorMode
from vllm_kairos.core.lease import LONGEST_S
from vllm_kairos.errors import ConfigError

MOST_ROUTERS = 64
"""As many as a node knows."""
TIGHTEST_SLO_MS = 0.1
"""Of the objectives of tokens that a governor goes by, as in the engine plugin."""
LOOSEST_SLO_MS = 3_600_000.0
"""Of all objectives of tokens."""


def option(default: Any, about: str) -> Any:
    """A field with its help text."""
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """The engines and how many routers are in front. Where a value is None the profile's own applies.

    Raises ConfigError naming field, rule and value.
    """

    nodes: str = option("1P1D", "nodes by role, as in 2P2D: prefill, decode, and with B for both phases (1P1D)")
    routers: int = option(1, "routers, each with its part of the requests and a view of its own; at most 64 (1)")
    profile: str = option("a100-llama3-8b", "latency profile: a shipped name or a file (a100-llama3-8b)")
    prefill_profile: str | None = option(None, "another profile for the prefill nodes")
    decode_profile: str | None = option(None, "another profile for the nodes that decode")
    kv_tokens: int | None = option(None, "KV capacity of a node in tokens (the profile's)")
    prefill_budget_tokens: int | None = option(None, "token budget of a step on prefill nodes (the profile's)")
    decode_budget_tokens: int | None = option(None, "token budget of a step on nodes that decode (the profile's)")
    max_num_seqs: int | None = option(None, "most running requests of a node (256, or the token budget if that is less)")
    block_size_tokens: int | None = option(None, "tokens per KV block (the profile's)")
    default_chunk_tokens: int | None = option(
        None, "bound on prefill nobody planned on a decode node; 0: none, as vLLM (512, none with a governor)"
    )
    prefix_caching: bool = option(True, "engines keep prefixes (yes)")
    async_scheduling: bool = option(False, "a step is composed as the one before it begins, as by vLLM on GPUs (no)")
    frontend_s: float = option(0.0, "API server and tokenizer time before the engine sees a request (0)")
    step_factor: float = option(1.0, "real steps take this times what the profile predicts (1)")
    step_noise: float = option(0.0, "standard deviation of the logarithm of a step's random factor (0)")

    def __post_init__(self) -> None:
        require("routers", self.routers, 1 <= self.routers <= MOST_ROUTERS, f">= 1 and <= {MOST_ROUTERS}")
        for name in ("kv_tokens", "prefill_budget_tokens", "decode_budget_tokens", "max_num_seqs", "block_size_tokens"):
            value = getattr(self, name)
            require(name, value, value is None or value >= 1, ">= 1")
        chunk = self.default_chunk_tokens
        require("default_chunk_tokens", chunk, chunk is None or chunk >= 0, ">= 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """What KV travels over; decimal gigabytes."""

    nic_gb_per_s: float = option(25.0, "what a node's NIC carries, GB/s (25)")
    flow_gb_per_s: float | None = option(None, "what one transfer reaches by itself, GB/s (the NIC's rate)")
    latency_s: float = option(0.0005, "time before a transfer's first byte within a rack (0.0005)")
    racks: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "a node's rack, as in p0=a; nodes not named share one rack"}
    )
    uplink_gb_per_s: float = option(100.0, "what a rack's uplink carries, GB/s (100)")
    cross_latency_s: float = option(0.001, "time before the first byte between racks (0.001)")

    def __post_init__(self) -> None:
        for name in ("nic_gb_per_s", "flow_gb_per_s", "uplink_gb_per_s"):
            value = getattr(self, name)
            require(name, value, value is None or value > 0, "> 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorConfig:
    """The engines' deadline governor, with their profile. Raises ConfigError naming field, rule and value."""

    mode: str | None = option(None, "prefill sized by decodes' deadlines: strict, guarded or adaptive (no governor)")
    tpot_slo_ms: float | None = option(None, "token 1 + n due so long times n after the first (the TPOT objective, if any)")
    tbt_slo_ms: float | None = option(None, "a token due so long after the one before (without a TPOT one, the TBT objective)")
    ttft_slo_ms: float | None = option(None, "with a long queue, the first prompt's TTFT goes before deadlines (it does not)")
    beta: float | str = option(0.9, "share of the time to a deadline that a step may take, or measured (0.9)")
    starvation_s: float = option(1.0, "time without a token after which the first prompt gets some in any case (1)")
    patience_tokens: float = option(8.0, "TPOT objectives' time that it waits for a chunk that is worth its step (8)")

    def __post_init__(self) -> None:
        modes = [str(mode) for mode in GovernorMode]
        require("mode", repr(self.mode), self.mode is None or self.mode in modes, f"one of {', '.join(modes)}")
        for name in ("tpot_slo_ms", "tbt_slo_ms"):
            require_governable(name, getattr(self, name))
        for name in ("ttft_slo_ms", "starvation_s"):
            value = getattr(self, name)
            require(name, value, value is None or 0 < value < inf, "a finite number > 0")
        require("patience_tokens", self.patience_tokens, 0 <= self.patience_tokens < inf, "a finite number >= 0")
        holds = self.beta == MEASURED if isinstance(self.beta, str) else 0 < self.beta <= 1
        require("beta", repr(self.beta), holds, f"{MEASURED} or a number > 0 and <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesConfig:
    """What decode nodes grant by, under a policy that spends leases. Raises ConfigError naming field, rule and value."""

    ttl_s: float = option(0.5, "how long a lease is good for, longer than a heartbeat (0.5)")
    horizon_s: float = option(4.0, "prefill is granted up to what a node computes within this time (4)")
    tbt_slo_ms: float | None = option(None, "what a decode may wait beside it (the governor's objective, or else the TBT one)")
    beta: float | None = option(None, "share of that wait that a step may take (the decisions' own)")

    def __post_init__(self) -> None:
        for name in ("ttl_s", "horizon_s"):
            value = getattr(self, name)
            require(name, value, 0 < value <= LONGEST_S, f"> 0 and <= {LONGEST_S:.0f} s")
        _require_objective("tbt_slo_ms", self.tbt_slo_ms)
        require("beta", self.beta, self.beta is None or 0 < self.beta <= 1, "> 0 and <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivesConfig:
    """What counts as good enough where a request does not say itself."""

    ttft_slo_ms: float = option(4000.0, "TTFT objective (4000)")
    tbt_slo_ms: float = option(70.0, "TBT objective (70)")
    tpot_slo_ms: float | None = option(None, "TPOT objective, of a request's mean gap (the TBT objective)")

    def __post_init__(self) -> None:
        require("ttft_slo_ms", self.ttft_slo_ms, 0 < self.ttft_slo_ms < inf, "a finite number > 0")
        for name in ("tbt_slo_ms", "tpot_slo_ms"):
            _require_objective(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadConfig:
    """A trace or a drawn workload, and what is done to it. Raises ConfigError naming field, rule and value."""

    trace: str | None = option(None, "trace file, plain or gzipped")
    format: str = option("auto", "the trace's format (told by its first row)")
    generate: str | None = option(
        None, "draw a workload instead: the paper's LPLD, LPHD, HPLD, HPHD or Bursty, or chat, long-context or mixed"
    )
    requests: int | None = option(None, "requests to draw, for a drawn workload (1000); of a trace, limit takes the first")
    scv: float | None = option(None, "squared coefficient of variation of drawn gaps (1, or the workload's own)")
    limit: int | None = option(None, "take the first requests only, after slicing")
    slice_start_s: float = option(0.0, "take requests from this second of the trace on (0)")
    slice_duration_s: float | None = option(None, "take this many seconds of the trace (all)")
    speed: float = option(1.0, "divide all gaps by this: 2 doubles the rate (1)")
    gap_cap_s: float | None = option(None, "shorten longer gaps to this")
    spread_s: float = option(0.0, "move each request later by a random part of this; 3 for Mooncake's clumps (0)")
    max_prompt_tokens: int | None = option(None, "cut longer prompts to this length")
    drop_longer: bool = option(False, "drop requests with longer prompts instead (no)")
    closed_loop: bool = option(True, "requests of a session wait for each other (yes)")

    @property
    def long_prompts(self) -> Literal["clip", "drop"]:
        """What happens to prompts over the limit."""
        return "drop" if self.drop_longer else "clip"

    def __post_init__(self) -> None:
        if self.trace is not None and self.generate is not None:
            raise ConfigError(f"trace must be left out when a workload is generated, got {self.trace!r}")
        if self.generate is not None:
            require("format", self.format, self.format == "auto", "left out when a workload is generated")
        if self.trace is not None:
            require("requests", self.requests, self.requests is None, "left out for a trace, of which limit takes the first")
        if self.drop_longer:
            require(
                "max_prompt_tokens", "nothing", self.max_prompt_tokens is not None, "given where longer prompts are dropped"
            )
        for name in ("requests", "limit", "max_prompt_tokens"):
            value = getattr(self, name)
            require(name, value, value is None or value >= 1, ">= 1")
        for name in ("speed", "slice_duration_s"):
            value = getattr(self, name)
            require(name, value, value is None or 0 < value < inf, "a finite number > 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """The grid: every policy at every rate with every seed. No rates: the workload's own. Raises ConfigError."""

    policies: tuple[str, ...] = option(("never", "kairos"), "policy, once for each (never and kairos)")
    rates: tuple[float, ...] = option((), "request rates per second, as in 4,5,6 (the workload's own)")
    seeds: tuple[int, ...] = option((0,), "seeds, as in 0,1,2; each repeats the whole grid (0)")

    def __post_init__(self) -> None:
        require("policies", "none", bool(self.policies), "one or more")
        require("seeds", "none", bool(self.seeds), "one or more")
        for rate in self.rates:
            require("rates", rate, isfinite(rate) and rate > 0, "finite numbers > 0")
        for name in ("policies", "rates", "seeds"):
            values = getattr(self, name)
            twice = next((value for value in values if values.count(value) > 1), None)
            require(name, f"{twice} twice", twice is None, "all different")


def require(name: str, value: Any, holds: bool, rule: str) -> None:
    """Raise ConfigError unless `holds`."""
    if not holds:
        raise ConfigError(f"{name} must be {rule}, got {value}")


def require_governable(name: str, value_ms: float | None, where: str = "") -> None:
    """Raise ConfigError unless a governor can go by this objective of tokens, if there is one."""
    holds = value_ms is None or TIGHTEST_SLO_MS <= value_ms <= LOOSEST_SLO_MS
    require(name, value_ms, holds, f"in {TIGHTEST_SLO_MS:g}..{LOOSEST_SLO_MS:.0f} ms{where}")


def _require_objective(name: str, value_ms: float | None) -> None:
    require(name, value_ms, value_ms is None or 0 < value_ms <= LOOSEST_SLO_MS, f"> 0 and <= {LOOSEST_SLO_MS:.0f} ms")
