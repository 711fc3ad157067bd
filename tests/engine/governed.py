"""A governed scheduler whose steps take what a model says, on a clock that only they move."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tests.engine.builder import run_model
from vllm_kairos.engine import compat_steps
from vllm_kairos.profiles import load_shipped

PROFILE = "a100-llama3-8b"
TRUTH = load_shipped(PROFILE).step_model
"""Decodes alone take 10 ms and more; a prompt token beside them some 65 us."""


def options(**governor: Any) -> dict[str, Any]:
    """The `kairos` settings of a server governed without a margin, guarded unless said otherwise."""
    return {"governor": {"profile": PROFILE, "beta": 1, "correct": False, **governor}}


class Governed:
    """Plays the engine core around `scheduler`, with `ahead` steps scheduled before the oldest has ended."""

    def __init__(self, scheduler: Any, ahead: int = 0, slowness: Callable[[], float] = lambda: 1.0) -> None:
        self.scheduler, self.ahead, self.slowness = scheduler, ahead, slowness
        self.now_s = 100.0
        self.tokens: dict[str, list[float]] = {}
        self.in_flight = deque[Any]()
        self.governor = scheduler._kairos_governor
        self.governor._clock = lambda: self.now_s
        self.governor._ended_s = self.now_s

    def step(self) -> dict[str, int]:
        """Schedule a step, and take in the oldest output once `ahead` more are under way."""
        output = self.scheduler.schedule()
        self.in_flight.append((output, run_model(self.scheduler, output), self._took_s(output)))
        keep = self.ahead if output.num_scheduled_tokens else 0
        while len(self.in_flight) > keep:
            self._finish()
        return dict(output.num_scheduled_tokens)

    def run(self, most: int = 2000) -> None:
        """Until nothing is left to do."""
        for _ in range(most):
            if not self.scheduler.has_requests() and not self.in_flight:
                return
            self.step()
        raise AssertionError("it does not end")

    def chunks(self, request_id: str) -> list[int]:
        """What `request_id` gets of each step until its whole prompt has been scheduled."""
        got, request = [], self.scheduler.requests[request_id]
        while request.num_computed_tokens < request.num_prompt_tokens:
            got.append(self.step().get(request_id, 0))
        return got

    def gaps(self, *request_ids: str) -> list[float]:
        chosen = request_ids or self.tokens
        return [later - earlier for name in chosen for earlier, later in pairwise(self.tokens[name])]

    def left_behind(self) -> tuple[int, ...]:
        """What must be zero once all requests have ended."""
        self.governor.begin([])  # takes note of who has ended
        own, core = self.governor._own, self.governor._governor
        return len(core.deadlines), len(own), len(self.in_flight), len(self.governor._in_flight), len(core._flights)

    def _took_s(self, output: Any) -> float:
        if not output.total_num_scheduled_tokens:
            return 0.0
        load = compat_steps.read_load(self.scheduler, output, output.num_scheduled_tokens.keys())
        return self.slowness() * TRUTH.packed_step_s(load.running_decodes, load.kv_tokens, load.chunks)

    def _finish(self) -> None:
        output, answer, took_s = self.in_flight.popleft()
        self.now_s += took_s
        for each in self.scheduler.update_from_output(output, answer).values():
            for one in each.outputs:
                if one.new_token_ids:
                    self.tokens.setdefault(one.request_id, []).append(self.now_s)
