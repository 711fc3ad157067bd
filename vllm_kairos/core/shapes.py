"""What a request asks for and what an engine step carries."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vllm_kairos.errors import RequestError, StateError

MAX_PROMPT_TOKENS = 2**53
"""Above it, floats no longer tell lengths apart, and soon cannot hold them."""


class Route(StrEnum):
    """Where a request's prompt is computed."""

    REMOTE = "prefill-decode"  # on a prefill node, KV pulled by the decode node
    LOCAL = "decode-only"  # on the decode node itself: deflected


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """One engine step: decodes first, then prefill tokens of one prompt.

    `kv_tokens` counts every KV token the step's sequences hold before it, the prompt's own
    `done_tokens` included (paper section 4.3.1: K).
    """

    running_decodes: int
    kv_tokens: int
    prefill_tokens: int = 0
    done_tokens: int = 0

    def __post_init__(self) -> None:
        # Spelled out: decisions build these by the dozen.
        if self.running_decodes >= 0 and self.kv_tokens >= 0 and self.prefill_tokens >= 0 and self.done_tokens >= 0:
            return
        for name in ("running_decodes", "kv_tokens", "prefill_tokens", "done_tokens"):
            value = getattr(self, name)
            if value < 0:
                raise StateError(f"batch: {name} must be >= 0, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """One request as a policy sees it: lengths and objectives, never text."""

    request_id: str
    prompt_tokens: int
    max_output_tokens: int = 16
    ttft_slo_s: float = 4.0
    tbt_slo_s: float = 0.070
    forced_route: Route | None = None
    forced_reason: str = ""  # why the caller forced it; becomes the decision's reason
    pinned_prefill_node: str | None = None
    affinity_key: str = ""  # what it shares with the other requests of its session; "": nothing known
    cached_tokens: Mapping[str, int] = field(default_factory=dict)  # node id -> prefix tokens it holds

    def __post_init__(self) -> None:
        if not 1 <= self.prompt_tokens <= MAX_PROMPT_TOKENS:
            rule = ">= 1" if self.prompt_tokens < 1 else f"<= {MAX_PROMPT_TOKENS}"
            raise RequestError(f"request {self.request_id!r}: prompt_tokens must be {rule}, got {self.prompt_tokens}")
        if self.max_output_tokens < 1:
            raise RequestError(f"request {self.request_id!r}: max_output_tokens must be >= 1, got {self.max_output_tokens}")
        for name in ("ttft_slo_s", "tbt_slo_s"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise RequestError(f"request {self.request_id!r}: {name} must be a finite number > 0, got {value}")

    def uncached_tokens(self, node_id: str) -> int:
        """Prompt tokens `node_id` would still have to compute; at least one, since logits need a token."""
        return max(1, self.prompt_tokens - self.cached_tokens.get(node_id, 0))
