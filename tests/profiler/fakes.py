"""An engine that keeps vLLM's promises and limits and takes exactly the time a linear law says."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_kairos.engine.compat_inprocess import EngineFacts, StepPart, StepRecord


def facts(**changes: object) -> EngineFacts:
    values: dict[str, object] = {
        "vllm_version": "0.32.0",
        "model": "model",
        "device": "cpu",
        "device_name": "cpu",
        "dtype": "bfloat16",
        "block_size_tokens": 32,
        "kv_blocks": 1456,
        "kv_bytes_per_token": 23040,
        "max_model_len_tokens": 4096,
        "max_running_requests": 16,
        "token_budget_tokens": 2048,
        "vocab_size": 1000,
    }
    return EngineFacts(**values | changes)  # type: ignore[arg-type]


@dataclass
class _Request:
    prompt_tokens: int
    held_tokens: int
    decoding: bool = False


@dataclass
class FakeEngine:
    """Runs decodes first and then prompts, in order of arrival, and refuses what a real engine could not hold."""

    facts: EngineFacts = field(default_factory=facts)
    slow_steps: dict[int, float] = field(default_factory=dict)  # step number -> factor
    requests: dict[str, _Request] = field(default_factory=dict)
    steps: int = 0

    def add(self, request_id: str, prompt_token_ids: Sequence[int], *, held_tokens: int) -> None:
        assert request_id not in self.requests
        assert 0 <= held_tokens < len(prompt_token_ids) < self.facts.max_model_len_tokens
        assert len(self.requests) < self.facts.max_running_requests
        assert max(prompt_token_ids) < self.facts.vocab_size
        self.requests[request_id] = _Request(len(prompt_token_ids), held_tokens)

    def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            del self.requests[request_id]

    def step(self, budget_tokens: int | None = None) -> StepRecord:
        budget = min(budget_tokens or self.facts.token_budget_tokens, self.facts.token_budget_tokens)
        parts = []
        for request in sorted(self.requests.values(), key=lambda request: not request.decoding):
            tokens = 1 if request.decoding else min(budget, request.prompt_tokens - request.held_tokens)
            if tokens < 1 or budget < 1:
                continue
            budget -= tokens
            parts.append(StepPart(tokens, request.held_tokens, request.decoding))
            request.held_tokens += tokens
            request.decoding = request.held_tokens >= request.prompt_tokens
        self._check_capacity()
        self.steps += 1
        step_s = law_s(parts) * self.slow_steps.get(self.steps, 1.0)
        return StepRecord(tuple(parts), step_s, step_s + 0.001)

    def _check_capacity(self) -> None:
        block = self.facts.block_size_tokens
        assert all(request.held_tokens < self.facts.max_model_len_tokens for request in self.requests.values())
        used = sum(-(-request.held_tokens // block) for request in self.requests.values())
        assert used < self.facts.kv_blocks


def law_s(parts: Sequence[StepPart]) -> float:
    """The time of a step: the same linear law in every regime."""
    decodes = sum(part.is_decode for part in parts)
    kv = sum(part.held_tokens for part in parts)
    prefill = sum(part.scheduled_tokens for part in parts if not part.is_decode)
    done = sum(part.held_tokens for part in parts if not part.is_decode)
    attention = prefill * done + prefill * prefill / 2
    return 0.040 + 5e-4 * decodes + 2.5e-6 * kv + 3e-4 * prefill + 1e-6 * done + 1.6e-7 * attention
