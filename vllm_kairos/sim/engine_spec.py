"""What an engine is: sizes as vLLM's flags give them, and how long its steps take."""

from dataclasses import dataclass

from vllm_kairos.core.governor import GovernorSettings
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import Role
from vllm_kairos.errors import SimulationError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine. Raises SimulationError naming the node, the field, the rule and the value.

    `step_factor` and `step_noise` make real steps differ from what `model` predicts: every step takes
    the prediction times the factor times a log-normal of mean 1 with that standard deviation of its logarithm.
    """

    name: str
    role: Role
    model: StepLatencyModel
    kv_blocks: int
    token_budget_tokens: int = 8192  # max_num_batched_tokens
    max_running_requests: int = 256  # max_num_seqs
    block_size_tokens: int = 16
    kv_bytes_per_token: int = 0
    default_chunk_tokens: int | None = 512  # bounds prefill that nobody planned, but on prefill nodes; None: vLLM's way
    max_wait_steps: int = 8
    floor_chunk_tokens: int = 16
    governor: GovernorSettings | None = None  # sizes prefill by the decodes' deadlines, with `model` as its profile
    prefix_caching: bool = True
    async_scheduling: bool = False  # whether a step is composed as the one before it begins
    frontend_s: float = 0.0  # API server, tokenizer and input processing, before the engine core sees a request
    step_factor: float = 1.0
    step_noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("kv_blocks", "token_budget_tokens", "max_running_requests", "block_size_tokens", "floor_chunk_tokens"):
            self._require(name, getattr(self, name) >= 1, ">= 1")
        for name in ("kv_bytes_per_token", "max_wait_steps", "frontend_s"):
            self._require(name, 0 <= getattr(self, name) < float("inf"), "a finite number >= 0")
        # Beyond these, most steps take no time at all or the whole run.
        self._require("step_factor", 1e-3 <= self.step_factor <= 1e3, "in [0.001, 1000]")
        self._require("step_noise", 0 <= self.step_noise <= 2, "in [0, 2]")
        chunk = self.default_chunk_tokens
        self._require("default_chunk_tokens", chunk is None or chunk >= 1, ">= 1 or nothing")
        # vLLM's own rule: a step has room for every running request's token.
        rule = f">= max_running_requests ({self.max_running_requests})"
        self._require("token_budget_tokens", self.token_budget_tokens >= self.max_running_requests, rule)

    @property
    def unplanned_chunk_tokens(self) -> int | None:
        """What bounds prefill that nobody planned; nothing does on a prefill node, as in the engine plugin."""
        return None if self.role is Role.PREFILL else self.default_chunk_tokens

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that the whole KV cache holds."""
        return self.kv_blocks * self.block_size_tokens

    @property
    def true_model(self) -> StepLatencyModel:
        """What steps really take, noise aside."""
        return self.model if self.step_factor == 1.0 else self.model.scaled(self.step_factor)

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise SimulationError(f"node {self.name!r}: {name} must be {rule}, got {getattr(self, name)}")
