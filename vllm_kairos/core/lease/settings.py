"""What an operator can set about the leases of a node."""

from dataclasses import dataclass

from vllm_kairos.errors import ConfigError

LONGEST_S = 3600.0
"""Of all times: what is granted is counted in tokens of that time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """Settings of one node. Raises ConfigError naming the field, the rule and the value."""

    ttl_s: float = 0.5
    """How long a lease is good for: a few heartbeats, so that a lost one costs nothing."""
    horizon_s: float = 4.0
    """Prefill is granted up to what the node computes within this time, what is queued there already included."""
    tbt_slo_s: float = 0.070
    """How long a running decode may wait for its next token beside that prefill."""
    beta: float = 0.9
    """Share of that time that a step may use."""

    def __post_init__(self) -> None:
        for name in ("ttl_s", "horizon_s", "tbt_slo_s"):
            value = getattr(self, name)
            if not 0 < value <= LONGEST_S:
                raise ConfigError(f"leases: {name} must be a number > 0 and <= {LONGEST_S:g}, got {value}")
        if not 0 < self.beta <= 1:
            raise ConfigError(f"leases: beta must be in (0, 1], got {self.beta}")
