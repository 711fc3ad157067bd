"""The simulator's engine composes the steps that the real scheduler composes, token for token.

Known exceptions, kept out of the mixes: with async scheduling vLLM may preempt a request whose last token is under
way, so KV is plenty there, and it starts a load that the step under way leaves no room for a step earlier than the
simulator does, which only shows where nothing else runs meanwhile; a pulled prompt of one token is computed here
again, as prefill; a preempted request finds its own blocks in vLLM's prefix cache, and the simulator recomputes all
but what its trace gives hashes for. With the hook of patches/0001 nothing is held out of the queue by a forecast, so that a
prompt behind one that turns out to be cached need not wait for the next step, as it does without.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import vllm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.async_core import AsyncCore
from tests.engine.builder import build_scheduler
from tests.engine.simulated import Arrival, Node, Steps, first_difference, real_steps, simulated_steps
from vllm_kairos.core.governor import GovernorMode, GovernorSettings, Objective
from vllm_kairos.engine import compat

Schedulers = Callable[[Node], Any]

# 0.30 does not serve those whose KV has arrived before the rest of its queue, so there the plugin lets a prompt
# wait for them: one step later than on 0.31 and 0.32, which the simulator models.
pytestmark = pytest.mark.skipif(vllm.__version__.startswith("0.30"), reason="the simulator models vLLM 0.31 and later")


@pytest.fixture(scope="module")
def scheduler_of(model: str) -> Iterator[Schedulers]:
    """Schedulers by node; a mix leaves its scheduler empty, so the next one may use it."""
    built: dict[Node, Any] = {}

    def get(node: Node) -> Any:
        if node.governor is not None:  # whose other settings each mix brings
            node = replace(node, governor=GovernorSettings(mode=node.governor.mode))
        if node not in built or built[node].requests:
            built[node] = build_scheduler(model, **node.options())
        return built[node]

    yield get
    for scheduler in built.values():
        scheduler.shutdown()


COMMON = {"at_step": st.integers(0, 12), "output": st.integers(1, 40)}


def computed_here() -> st.SearchStrategy[Arrival]:
    """Prompts nobody planned, and deflected ones."""
    schedules = st.lists(st.integers(1, 80), min_size=1, max_size=4).map(tuple)
    return st.one_of(
        st.builds(Arrival, prompt=st.integers(1, 150), **COMMON),
        st.builds(Arrival, prompt=st.integers(1, 150), schedule=schedules, **COMMON),
    )


def arrivals() -> st.SearchStrategy[Arrival]:
    """Those, and pulled ones."""
    return st.one_of(computed_here(), st.builds(Arrival, prompt=st.integers(2, 150), pull_steps=st.integers(1, 5), **COMMON))


def prefill_legs() -> st.SearchStrategy[Arrival]:
    """What a prefill node gets."""
    return st.builds(Arrival, at_step=st.integers(0, 12), prompt=st.integers(1, 150), held_steps=st.integers(1, 5))


def sharing(arrival: Arrival, number: int, family: int, shared_tokens: int) -> Arrival:
    """`arrival` with a prompt whose first tokens are those of its family."""
    ids = [1000 * family + at if at < shared_tokens else 10_000 + 200 * number + at for at in range(arrival.prompt)]
    hashes = [zlib.crc32(repr(ids[: 16 * (block + 1)]).encode()) for block in range(arrival.prompt // 16)]
    return replace(arrival, ids=tuple(ids), hashes=tuple(hashes))


def nodes(*kv_blocks: int) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        token_budget=st.sampled_from([16, 64, 512]),
        kv_blocks=st.sampled_from(kv_blocks),
        max_sequences=st.sampled_from([2, 4, 8]),
        default_chunk=st.sampled_from([None, 8, 100]),
    )


mixes = st.lists(arrivals(), min_size=1, max_size=8)
many = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def check(scheduler_of: Schedulers, node: Node, mix: list[Arrival]) -> None:
    scheduler = scheduler_of(node)
    real = AsyncCore(scheduler, mix, node).play() if node.async_scheduling else real_steps(scheduler, mix, node)
    for leaps in (False, True):
        assert not first_difference(real, simulated_steps(node, mix, leaps=leaps)), f"leaps: {leaps}"


@given(node=nodes(1000), mix=mixes)
@many
def test_steps_agree_where_kv_is_plenty(scheduler_of: Schedulers, node: Node, mix: list[Arrival]) -> None:
    check(scheduler_of, node, mix)


@given(node=nodes(13, 17, 30), mix=mixes)
@many
def test_steps_agree_where_kv_is_short(scheduler_of: Schedulers, node: Node, mix: list[Arrival]) -> None:
    """Admission, loads and preemption compete for the same few blocks."""
    check(scheduler_of, node, mix)


@given(node=nodes(13, 30), mix=st.lists(st.one_of(prefill_legs(), arrivals()), min_size=1, max_size=8))
@many
def test_steps_agree_while_prefill_legs_hold_their_kv(scheduler_of: Schedulers, node: Node, mix: list[Arrival]) -> None:
    check(scheduler_of, node, mix)


@given(node=nodes(1000), mix=st.lists(st.one_of(prefill_legs(), computed_here()), min_size=1, max_size=8))
@many
def test_steps_agree_with_async_scheduling(scheduler_of: Schedulers, node: Node, mix: list[Arrival]) -> None:
    check(scheduler_of, replace(node, async_scheduling=True), mix)


BACKGROUND = Arrival(at_step=0, prompt=1, output=300)


@given(node=nodes(1000), mix=st.lists(st.one_of(prefill_legs(), arrivals()), min_size=1, max_size=8))
@many
def test_steps_agree_with_async_scheduling_while_an_engine_is_at_work(
    scheduler_of: Schedulers, node: Node, mix: list[Arrival]
) -> None:
    """Pulls too, as long as the first request decodes."""
    node, mix = replace(node, async_scheduling=True), [BACKGROUND, *mix]
    real = AsyncCore(scheduler_of(node), mix, node).play()
    last = max(step for step, tokens in real.items() if "R0" in tokens)
    for leaps in (False, True):
        simulated = simulated_steps(node, mix, leaps=leaps)
        assert not first_difference(_until(real, last), _until(simulated, last)), f"leaps: {leaps}"


def _until(steps: Steps, last: int) -> Steps:
    return {step: tokens for step, tokens in steps.items() if step <= last}


def governors() -> st.SearchStrategy[GovernorSettings]:
    """Steps take a second: some objectives are met with time to spare, some are missed after a while or at once."""
    objectives = (Objective(tbt_s=1.3), Objective(tbt_s=0.9), Objective(tpot_s=1.2), Objective(tpot_s=0.9), Objective(2.0, 1.0))
    return st.builds(
        GovernorSettings,
        mode=st.sampled_from(GovernorMode),
        objective=st.sampled_from(objectives),
        starvation_s=st.sampled_from([2.5, 8.5]),
        floor_tokens=st.just(4),
        ttft_slo_s=st.sampled_from([None, 5.0, 12.0]),
        correct=st.just(False),
    )


@given(node=nodes(17, 1000), governor=governors(), mix=mixes)
@many
def test_steps_agree_with_a_governor(
    scheduler_of: Schedulers, node: Node, governor: GovernorSettings, mix: list[Arrival]
) -> None:
    check(scheduler_of, replace(node, governor=governor), mix)


@given(node=nodes(1000), governor=governors(), mix=st.lists(computed_here(), min_size=1, max_size=8))
@many
def test_steps_agree_with_a_governor_and_async_scheduling(
    scheduler_of: Schedulers, node: Node, governor: GovernorSettings, mix: list[Arrival]
) -> None:
    check(scheduler_of, replace(node, governor=governor, async_scheduling=True), mix)


families = st.tuples(st.integers(0, 2), st.sampled_from([0, 16, 20, 48, 64, 150]))


@pytest.mark.skipif(compat.HAS_LIMIT_HOOK, reason="the simulator models vLLM without the hook")
@given(node=nodes(1000), mix=st.lists(st.tuples(arrivals(), families), min_size=2, max_size=8))
@many
def test_steps_agree_with_a_prefix_cache(
    scheduler_of: Schedulers, node: Node, mix: list[tuple[Arrival, tuple[int, int]]]
) -> None:
    """A prompt shares what earlier ones computed, in the very same step too."""
    node = replace(node, prefix_caching=True)
    scheduler_of(node).reset_prefix_cache()
    check(scheduler_of, node, [sharing(arrival, number, *family) for number, (arrival, family) in enumerate(mix)])


def test_a_load_that_would_take_a_running_prefills_blocks_waits(scheduler_of: Schedulers) -> None:
    node = Node(token_budget=16, kv_blocks=13, default_chunk=None)
    mix = [Arrival(at_step=0, prompt=120, output=4), Arrival(at_step=2, prompt=100, output=4, pull_steps=1)]
    check(scheduler_of, node, mix)


def test_who_was_shut_out_by_a_preemption_enters_the_next_step(scheduler_of: Schedulers) -> None:
    node = Node(token_budget=64, kv_blocks=14, max_sequences=2, default_chunk=8)
    mix = [
        Arrival(at_step=1, prompt=125, output=30, pull_steps=1),
        Arrival(at_step=7, prompt=32, output=39, schedule=(60, 45)),
        Arrival(at_step=5, prompt=28, output=35, pull_steps=5),
    ]
    check(scheduler_of, node, mix)
