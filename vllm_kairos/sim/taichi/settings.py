"""What can be set about TaiChi beyond what every policy has."""

from dataclasses import dataclass
from math import isfinite

from vllm_kairos.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaichiSettings:
    """Raises ConfigError naming the field, the rule and the value.

    TaiChi's other two sliders are the cluster's: nodes of role prefill are the P-heavy instances and their token
    budget is the large chunk; all others are D-heavy.
    """

    decode_heavy_chunk_tokens: int = 256
    """Total tokens of a step that carries prefill on a D-heavy instance, decodes included."""
    kv_watermark: float = 0.9
    """Share of a D-heavy instance's KV cache from which decodes flow out, and up to which P-heavy ones take them."""
    tpot_share: float = 0.9
    """Share of a request's TBT objective that its mean gap may reach on a P-heavy instance before it flows back."""

    def __post_init__(self) -> None:
        chunk = self.decode_heavy_chunk_tokens
        if chunk < 1:
            raise ConfigError(f"taichi: decode_heavy_chunk_tokens must be >= 1, got {chunk}")
        for name in ("kv_watermark", "tpot_share"):
            value = getattr(self, name)
            if not (isfinite(value) and 0 < value <= 1):
                raise ConfigError(f"taichi: {name} must be in (0, 1], got {value}")


def parse_taichi(spec: str) -> TaichiSettings:
    """Read `taichi` or `taichi:CHUNK`. Raises ConfigError."""
    _, colon, chunk = spec.partition(":")
    if not colon:
        return TaichiSettings()
    if not chunk.isdecimal() or not chunk.isascii():
        raise ConfigError(f"policy 'taichi' must be followed by a whole number >= 1, as in 'taichi:256', got {chunk!r}")
    return TaichiSettings(decode_heavy_chunk_tokens=int(chunk))
