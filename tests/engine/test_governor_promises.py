"""The governor's promises on the real scheduler, in each mode, against brute force."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builder import build_scheduler, make_request, schedule_params
from tests.engine.governed import TRUTH, Governed, options
from tests.engine.test_boundaries import as_hybrid
from vllm_kairos.core.governor import NO_CHUNKS, with_chunk
from vllm_kairos.engine import compat_steps

ALL_MODES = pytest.mark.parametrize("mode", ["strict", "guarded", "adaptive"])
FEW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TOLERANCE = 1e-9
STATE_BLOCK = 160


class Observed:
    """A governed node of `decodes` that go on for ever, and what each of its steps could have carried of one prompt."""

    def __init__(self, model: str, decodes: int, *, async_scheduling: bool, hybrid: bool, **governor: Any) -> None:
        self.block = STATE_BLOCK if hybrid else 1
        self._options = {"block_size": STATE_BLOCK} if hybrid else {}
        kairos = {"role": "decode", **options(starvation_s=1000, **governor)}
        scheduler = build_scheduler(model, async_scheduling=async_scheduling, kairos=kairos, **self._options)
        if hybrid:
            as_hybrid(scheduler, STATE_BLOCK)
        self.node, self.decodes = Governed(scheduler, ahead=int(async_scheduling)), decodes
        for index in range(decodes):
            scheduler.add_request(make_request(f"D{index}", 20, max_tokens=5000, **self._options))
        while len(self.node.tokens) < decodes:
            self.node.step()

    def add(self, tokens: int, chi: int | None) -> None:
        transfer = None if chi is None else schedule_params(chi)
        self.node.scheduler.add_request(make_request("P", tokens, transfer=transfer, max_tokens=1, **self._options))

    def steps(self) -> list[tuple[int, int, int]]:
        """For each step until the prompt is done: what it gets, what is left, and by brute force the most that is in time."""
        request, found = self.node.scheduler.requests["P"], []
        while (left := request.num_prompt_tokens - request.num_computed_tokens) > 0:
            done, kv_tokens = request.num_computed_tokens, self._kv_tokens()
            taken = self.node.step().get("P", 0)
            found.append((taken, left, self._largest(done, left, kv_tokens)))
            assert len(found) < 3000
        self.node.step()
        return found

    def _kv_tokens(self) -> int:
        return sum(each.num_computed_tokens for each in self.node.scheduler.running if each.request_id != "P")

    def _largest(self, done: int, left: int, kv_tokens: int) -> int:
        limit_s = self.tbt_s * (1 + 1e-12)
        best = 0
        for tokens in range(1, left + 1):
            if TRUTH.packed_step_s(self.decodes, kv_tokens + done, with_chunk(NO_CHUNKS, done, tokens)) > limit_s:
                break
            # vLLM ends a chunk at the prompt's last whole state block, too.
            last = tokens == left and left < self.block and done % self.block == 0
            if last or (done + tokens) % self.block == 0:
                best = tokens
        return best

    @property
    def tbt_s(self) -> float:
        return self.node.governor._objective.tbt_s


@ALL_MODES
@pytest.mark.parametrize("hybrid", [False, True])
@FEW
@given(
    decodes=st.integers(1, 24),
    prompt=st.integers(1, 1500),
    tbt_s=st.floats(0.025, 0.06),
    chi=st.sampled_from([None, 80, 10_000]),
    async_scheduling=st.booleans(),
)
def test_exact_predictions_miss_nothing_and_waste_nothing(
    model: str, mode: str, hybrid: bool, decodes: int, prompt: int, tbt_s: float, chi: int | None, async_scheduling: bool
) -> None:
    """Decodes alone are in time. A prompt gets the most that is; or what its schedule says, where the mode looks at it."""
    chi = 10_000 if hybrid and chi == 80 else chi  # less than a state block is raised to one
    seen = Observed(model, decodes, async_scheduling=async_scheduling, hybrid=hybrid, tbt_slo_s=tbt_s, mode=mode)
    seen.add(prompt, chi)
    steps = seen.steps()
    room = prompt if chi is None or mode == "adaptive" else chi - decodes
    for taken, left, in_time in steps:
        if mode == "strict" and chi is not None:
            assert taken == min(left, room) or (hybrid and 0 < left - taken < STATE_BLOCK)
        else:
            assert taken == min(in_time, room)
    if not (mode == "strict" and chi is not None):
        assert max(seen.node.gaps()) <= tbt_s + TOLERANCE
        assert seen.node.governor._governor.counts.late_steps == 0
    seen.node.scheduler.shutdown()


@ALL_MODES
@pytest.mark.parametrize(("beta", "error"), [(1, 0.2), (0.9, 0.1), (0.9, 0.3)])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_wrong_predictions_are_late_by_no_more_than_documented(
    model: str, mode: str, beta: float, error: float, async_scheduling: bool
) -> None:
    """Predictions too low by up to `error`: late by at most (1 + error) * beta - 1 of the time to the deadline."""
    noise, tbt_s = random.Random(7), 0.04
    seen = Observed(model, 8, async_scheduling=async_scheduling, hybrid=False, tbt_slo_s=tbt_s, mode=mode, beta=beta)
    seen.node.slowness = lambda: 1 + error * noise.random()
    seen.add(6000, None)
    seen.steps()
    longest_s = max(seen.node.gaps("D0"))
    assert longest_s <= tbt_s * max(1.0, (1 + error) * beta) + TOLERANCE
    assert (longest_s > tbt_s) == ((1 + error) * beta > 1)
    assert (seen.node.governor._governor.counts.late_steps > 0) == ((1 + error) * beta > 1)
    seen.node.scheduler.shutdown()


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_a_measured_share_leaves_few_steps_late(model: str, async_scheduling: bool) -> None:
    noise, tbt_s = random.Random(3), 0.04
    seen = Observed(model, 8, async_scheduling=async_scheduling, hybrid=False, tbt_slo_s=tbt_s, beta="measured")
    seen.node.slowness = lambda: noise.gauss(1.0, 0.05)
    for _ in range(14):
        seen.add(6000, None)
        seen.steps()
    counts = seen.node.governor._governor.counts
    assert counts.bounded_steps > 100
    assert counts.late_steps <= 0.06 * counts.bounded_steps
    assert 0.85 < counts.share < 1.0
    seen.node.scheduler.shutdown()


def test_the_load_that_steps_are_priced_by_is_the_real_one(model: str) -> None:
    """However it is kept: steps in which nobody joins or leaves are not looked at one by one."""
    seen = Observed(model, 6, async_scheduling=True, hybrid=False, tbt_slo_s=0.03)
    node, scheduler = seen.node, seen.node.scheduler
    told: list[tuple[Any, ...]] = []
    governor = node.governor._governor
    scheduled = governor.scheduled
    governor.scheduled = lambda now_s, *load: told.append(load) or scheduled(now_s, *load)
    for index in range(40):
        if index % 13 == 0:
            scheduler.add_request(make_request(f"P{index}", 700, max_tokens=3 + index))
        told.clear()
        output = scheduler.schedule()
        load = compat_steps.read_load(scheduler, output, output.num_scheduled_tokens.keys())
        node.governor._catch_up()
        assert told[-1] == (load.running_decodes, load.kv_tokens, load.chunks)
        node.in_flight.append((output, *_answer(node, output)))
        while len(node.in_flight) > 1:
            node._finish()
    scheduler.shutdown()


def _answer(node: Governed, output: Any) -> tuple[Any, float]:
    from tests.engine.builder import run_model

    return run_model(node.scheduler, output), node._took_s(output)
