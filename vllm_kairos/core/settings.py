"""What an operator can set about decisions."""

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from vllm_kairos.errors import ConfigError


class PrefillUnavailable(StrEnum):
    """What to do with a request while no prefill node takes work."""

    FAIL = "fail"
    DEFLECT_BOUNDED = "deflect-bounded"  # only what keeps running decodes within TBT
    DEFLECT = "deflect"  # serve it, whatever it does to TBT


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """Settings shared by every policy. Raises ConfigError naming the field, the rule and the value."""

    alpha: float = 1.3
    """Deflect while the decode path's TTFT is at most the prefill path's plus alpha - 1 times the wait in the
    prefill queue that the others would be spared (paper Eq. 7, its margin bounded by what it is for)."""
    beta: float = 0.9
    """Share of the TBT objective that a step may use (paper Eq. 5)."""
    chunk_candidates_tokens: tuple[int, ...] = (2048, 1024, 512, 256, 128, 64)
    """Chunk sizes chi to choose from, decodes included, largest first."""
    deflection_slot_share: float = 0.9
    """Deflect to a node while it runs less than this share of the requests it may: where slots are short, the decodes
    are the bottleneck, and a prompt beside them keeps those slots taken for longer."""
    deflections_per_node: int = 1
    """Deflected prefills that a decode node may have at a time. More of them run one behind the other,
    each planned behind those before it; one is what a router may count on that shares its nodes with another."""
    static_chunk_tokens: int = 128
    """chi of the policies that plan without a latency model (paper section 3: 128)."""
    unplanned_chunk_tokens: int = 512
    """chi that a decode node gives to prefill nobody planned (its `default_chunk_tokens`)."""
    output_reserve_tokens: int = 256
    """KV tokens kept free for a deflected request's output, or its own limit where that is smaller."""
    default_bandwidth_bytes_per_s: float = 10e9
    """KV transfer rate assumed for a pair that none was measured for."""
    kv_bytes_per_token: int = 0
    """KV size assumed for a decode node that does not report its own."""
    prefill_unavailable: PrefillUnavailable | str = PrefillUnavailable.DEFLECT_BOUNDED
    retry_after_s: float = 1.0
    """What a refusal that will pass tells the client to wait."""

    def __post_init__(self) -> None:
        _require("alpha", self.alpha, self.alpha >= 1, ">= 1")
        for name in ("beta", "deflection_slot_share"):
            _require(name, getattr(self, name), 0 < getattr(self, name) <= 1, "in (0, 1]")
        for name in (
            "deflections_per_node",
            "static_chunk_tokens",
            "unplanned_chunk_tokens",
            "default_bandwidth_bytes_per_s",
            "retry_after_s",
        ):
            _require(name, getattr(self, name), getattr(self, name) > 0, "> 0")
        for name in ("output_reserve_tokens", "kv_bytes_per_token"):
            _require(name, getattr(self, name), getattr(self, name) >= 0, ">= 0")
        self._check_candidates()
        try:
            object.__setattr__(self, "prefill_unavailable", PrefillUnavailable(self.prefill_unavailable))
        except ValueError:
            choices = ", ".join(PrefillUnavailable)
            raise ConfigError(f"prefill_unavailable must be one of {choices}, got {self.prefill_unavailable!r}") from None

    def _check_candidates(self) -> None:
        chunks = tuple(self.chunk_candidates_tokens)
        if not chunks or any(not isinstance(chunk, int) or chunk < 1 for chunk in chunks):
            raise ConfigError(f"chunk_candidates_tokens must be one or more integers >= 1, got {list(chunks)}")
        object.__setattr__(self, "chunk_candidates_tokens", tuple(sorted(set(chunks), reverse=True)))


def _require(name: str, value: float, holds: bool, rule: str) -> None:
    if not (isfinite(value) and holds):
        raise ConfigError(f"{name} must be a finite number {rule}, got {value}")
