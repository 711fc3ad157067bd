"""What the modes make of a prompt that brings a chunk schedule, on the real scheduler."""

from typing import Any

import pytest

from tests.engine.builder import make_request, schedule_params
from tests.engine.governed import TRUTH, Governed, options
from vllm_kairos.core.governor import NO_CHUNKS, with_chunk

BOTH_MODES = pytest.mark.parametrize("async_scheduling", [False, True])
TBT_S = 0.03
ROUNDING_S = 1e-9


def with_decodes(build: Any, async_scheduling: bool = False, count: int = 4, **governor: Any) -> Governed:
    kairos = {"role": "decode", **options(tbt_slo_s=TBT_S, **governor)}
    node = Governed(build(async_scheduling=async_scheduling, kairos=kairos), ahead=int(async_scheduling))
    for index in range(count):
        node.scheduler.add_request(make_request(f"D{index}", 20, max_tokens=1000))
    while len(node.tokens) < count:
        node.step()
    return node


def add(node: Governed, name: str, tokens: int, *chi: int) -> None:
    node.scheduler.add_request(make_request(name, tokens, transfer=schedule_params(*chi) if chi else None, max_tokens=1))


def safe_chunk(done_tokens: int = 0) -> int:
    """By trying them all, beside four decodes of hardly any KV: a few tokens more than real ones leave."""
    fits = (TRUTH.packed_step_s(4, 80 + done_tokens, with_chunk(NO_CHUNKS, done_tokens, n)) <= TBT_S for n in range(1, 2000))
    return sum(fits)


@BOTH_MODES
@pytest.mark.parametrize(
    ("mode", "under_short", "under_long"),
    [("strict", "schedule", "schedule"), ("guarded", "schedule", "deadline"), ("adaptive", "deadline", "deadline")],
)
def test_what_bounds_a_scheduled_prompt(
    build: Any, async_scheduling: bool, mode: str, under_short: str, under_long: str
) -> None:
    """Entries of 100 tokens stay within the deadline, those of 1,500 do not."""
    for chi, bounded_by in ((100, under_short), (1500, under_long)):
        node = with_decodes(build, async_scheduling, mode=mode)
        add(node, "A", 3000, chi)
        chunks = node.chunks("A")
        if bounded_by == "schedule":
            assert chunks == [chi - 4] * (3000 // (chi - 4)) + [3000 % (chi - 4)]
        else:
            assert all(abs(tokens - safe_chunk()) < 40 for tokens in chunks[:3])
        node.step()
        late = max(node.gaps("D0")) > TBT_S + ROUNDING_S
        assert late == (chi == 1500 and bounded_by == "schedule")


@BOTH_MODES
@pytest.mark.parametrize("mode", ["strict", "guarded", "adaptive"])
def test_a_prompt_without_a_schedule_is_bounded_by_deadlines(build: Any, async_scheduling: bool, mode: str) -> None:
    node = with_decodes(build, async_scheduling, mode=mode)
    add(node, "B", 3000)
    assert abs(node.chunks("B")[0] - safe_chunk()) < 40
    node.step()
    assert max(node.gaps()) <= TBT_S + ROUNDING_S


@BOTH_MODES
def test_what_a_strict_schedule_takes_counts_for_the_others(build: Any, async_scheduling: bool) -> None:
    """The prompt without a schedule gets what deadlines leave beside the other's chunk, and nothing beside too large a one."""
    node = with_decodes(build, async_scheduling, mode="strict")
    add(node, "A", 2000, 104)
    add(node, "B", 3000)
    tokens = node.step()
    assert tokens["A"] == 100
    assert abs(tokens["A"] + tokens["B"] - safe_chunk()) < 40
    node = with_decodes(build, async_scheduling, mode="strict")
    add(node, "A", 6000, 1504)
    add(node, "B", 3000)
    for _ in range(4):
        tokens = node.step()
        assert (tokens["A"], tokens.get("B")) == (1500, None)


@BOTH_MODES
def test_a_prompt_behind_strict_schedules_does_not_starve(build: Any, async_scheduling: bool) -> None:
    node = with_decodes(build, async_scheduling, mode="strict", starvation_s=0.3)
    add(node, "A", 12_000, 504)
    add(node, "B", 3000)
    began_s, steps = node.now_s, [node.step()]
    while "B" not in steps[-1]:
        steps.append(node.step())
    assert all(step["A"] == 500 for step in steps[:-1])
    assert steps[-1]["B"] == 16
    assert 0.3 <= node.now_s - began_s <= 0.3 + 4 * 0.06


def test_without_decodes_a_schedule_holds_unless_it_is_not_looked_at(build: Any) -> None:
    for mode, tokens in (("strict", 100), ("guarded", 100), ("adaptive", 3000)):
        node = with_decodes(build, mode=mode, count=0)
        add(node, "A", 3000, 100)
        assert node.step()["A"] == tokens
