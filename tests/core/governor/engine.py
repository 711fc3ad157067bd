"""An engine of a few lines: steps one after the other, decodes that go on for ever, and a queue of prompts."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from vllm_kairos.core.governor import BoundedStep, Flight, Governor, Prompt, StepBound, with_chunk
from vllm_kairos.core.governor.chunk import NO_CHUNKS
from vllm_kairos.core.latency import PrefillTotals, StepLatencyModel


@dataclass(kw_only=True)
class Engine:
    """Runs steps that take `truth` times `error(step)`, `ahead` of them scheduled before the oldest has ended."""

    governor: Governor
    truth: StepLatencyModel
    decodes: int = 16
    decode_kv_tokens: int = 16_000
    prompts: list[list[int]] = field(default_factory=list)  # [done, left] each
    budget_tokens: int = 2048
    ahead: int = 0
    error: Callable[[int], float] = lambda step: 1.0
    now_s: float = 10.0
    steps: int = 0
    token_times: list[float] = field(default_factory=list)  # of all decodes: each gets one in every step
    chunks: list[PrefillTotals] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)
    _flights: deque[tuple[Flight, float]] = field(default_factory=deque)
    _ended_s: float = 10.0

    def step(self) -> None:
        """Schedule one step, then take outputs in until only `ahead` are left."""
        carried = self._carried()
        kv_tokens = self.decode_kv_tokens + carried.done_tokens
        flight = self.governor.scheduled(self.now_s, self.decodes, kv_tokens, carried)
        joined = {} if self.steps else {f"d{index}": self.governor._settings.objective for index in range(self.decodes)}
        assert self.governor.deadlines.go_on(joined, self.decodes, flight)
        took_s = self.error(self.steps) * self.truth.packed_step_s(self.decodes, kv_tokens, carried)
        self._flights.append((flight, took_s))
        self.steps += 1
        while len(self._flights) > self.ahead:
            self._finish()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    @property
    def gaps(self) -> Sequence[float]:
        return [later - earlier for earlier, later in pairwise(self.token_times)]

    def _carried(self) -> PrefillTotals:
        carried = NO_CHUNKS
        if not self.prompts:
            self.governor.nobody_waits()
        bound = self._bound() if self.prompts else None
        step = BoundedStep(bound) if bound else None
        for number, prompt in enumerate(self.prompts):
            done, left = prompt
            most = min(left, self.budget_tokens - carried.tokens)
            tokens = step.largest(Prompt(done, left), most) if step else 0  # the first step starts the decodes
            if tokens and step:
                if number == 0:
                    self.governor.head_served(self.now_s)
                step.grant(number, done, tokens)
                carried = with_chunk(carried, done, tokens)
                prompt[:] = [done + tokens, left - tokens]
            if tokens < left:
                break
        self.prompts = [prompt for prompt in self.prompts if prompt[1]]
        self.chunks.append(carried)
        self.limits.append(bound.limit_s if bound else 0.0)
        return carried

    def _bound(self) -> StepBound | None:
        head = str(id(self.prompts[0]))
        return self.governor.bound(self.now_s, self.decodes, self.decode_kv_tokens, head)

    def _finish(self) -> None:
        flight, took_s = self._flights.popleft()
        self._ended_s = self.now_s = max(self._ended_s, flight.begin_s) + took_s
        self.token_times.append(self.now_s)
        self.governor.finished(flight, self.now_s, took_s)
