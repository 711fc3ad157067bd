"""Schedules: equal to a plain step-by-step plan, safe in every step, complete, and as greedy as they can be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import A100, CANDIDATES, models
from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule, Planned, build_schedule
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import StateError

Steps = list[tuple[int, int, int]]  # prefill tokens, done tokens and KV tokens of each step


def step_by_step(
    model: LinearStepModel, decodes: int, kv: int, prompt: int, done: int, candidates: tuple[int, ...], limit_s: float
) -> tuple[Steps, float] | None:
    """Plan one step after the other: take the largest chunk still in use if what it would carry is safe, else a smaller one."""
    steps: Steps = []
    total_s, at, kv = 0.0, 0, kv + done
    while done < prompt:
        if at == len(candidates) or candidates[at] <= decodes:
            return None
        chunk = min(candidates[at] - decodes, prompt - done)
        batch = BatchShape(running_decodes=decodes, kv_tokens=kv, prefill_tokens=chunk, done_tokens=done)
        if decodes and model.step_s(batch) > limit_s:
            at += 1
            continue
        steps.append((chunk, done, kv))
        total_s += model.step_s(batch)
        done, kv = done + chunk, kv + chunk + decodes
    return steps, total_s


def carried(plan: Planned, decodes: int, left: int) -> list[int]:
    """Prompt tokens of each step, as an engine runs the schedule."""
    chunks = []
    for chi in plan.schedule.batch_tokens():
        chunks.append(min(chi - decodes, left))
        left -= chunks[-1]
    return chunks


@st.composite
def inputs(draw: st.DrawFn) -> dict:
    prompt = draw(st.one_of(st.integers(1, 300), st.integers(1, 30_000)))
    return {
        "running_decodes": draw(st.integers(0, 130)),
        "kv_tokens": draw(st.integers(0, 200_000)),
        "prompt_tokens": prompt,
        "done_tokens": draw(st.one_of(st.just(0), st.integers(0, prompt - 1))),
        "candidates": draw(st.sampled_from([CANDIDATES, (512,), (300, 200, 150), (8192, 2048, 96)])),
        "limit_s": draw(st.floats(0.005, 0.3)),
    }


@given(models(), inputs())
def test_the_closed_form_equals_planning_step_by_step(model, given_):
    plan = build_schedule(model, **given_)
    reference = step_by_step(model, *given_.values())
    if reference is None:
        assert plan is None
        return
    steps, total_s = reference
    assert plan is not None
    left = given_["prompt_tokens"] - given_["done_tokens"]
    assert carried(plan, given_["running_decodes"], left) == [chunk for chunk, _, _ in steps]
    assert plan.ttft_s == pytest.approx(total_s, rel=1e-9)


@given(models(), inputs())
def test_every_step_is_safe_and_the_prompt_ends_exactly_with_the_schedule(model, given_):
    plan = build_schedule(model, **given_)
    if plan is None:
        return
    decodes, done = given_["running_decodes"], given_["done_tokens"]
    kv = given_["kv_tokens"] + done
    chunks = carried(plan, decodes, given_["prompt_tokens"] - done)
    assert sum(chunks) == given_["prompt_tokens"] - done
    assert min(chunks) > 0
    worst_s = 0.0
    for chunk in chunks:
        step_s = model.latency_s(decodes, kv, chunk, done)
        assert not decodes or step_s <= given_["limit_s"]
        worst_s = max(worst_s, step_s)
        done, kv = done + chunk, kv + chunk + decodes
    assert plan.worst_step_s == pytest.approx(worst_s, rel=1e-9)


@given(models(), inputs())
def test_no_larger_chunk_would_have_been_safe_in_any_step(model, given_):
    plan = build_schedule(model, **given_)
    decodes, done = given_["running_decodes"], given_["done_tokens"]
    if plan is None or not decodes:
        return
    kv, left = given_["kv_tokens"] + done, given_["prompt_tokens"] - done
    for chi, chunk in zip(plan.schedule.batch_tokens(), carried(plan, decodes, left), strict=True):
        larger = [other for other in given_["candidates"] if other > chi and chunk < left]
        assert all(model.latency_s(decodes, kv, other - decodes, done) > given_["limit_s"] for other in larger)
        done, kv, left = done + chunk, kv + chunk + decodes, left - chunk


@given(models(), inputs(), st.floats(1, 3))
def test_a_looser_limit_never_makes_a_feasible_prompt_infeasible(model, given_, factor):
    if build_schedule(model, **given_) is not None:
        assert build_schedule(model, **{**given_, "limit_s": given_["limit_s"] * factor}) is not None


@given(models(), inputs())
def test_the_number_of_runs_is_bounded_by_the_candidates_not_the_prompt(model, given_):
    plan = build_schedule(model, **given_)
    assert plan is None or len(plan.schedule.runs) <= len(given_["candidates"]) + 1


def _plan(**changes) -> Planned | None:
    given_ = {"running_decodes": 20, "kv_tokens": 40_000, "prompt_tokens": 4096, "candidates": CANDIDATES, "limit_s": 0.063}
    return build_schedule(A100, **{**given_, **changes})


def test_chunks_shrink_as_computed_tokens_accumulate():
    plan = _plan(prompt_tokens=20_000)
    assert plan is not None
    sizes = [run.batch_tokens for run in plan.schedule.runs]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) > 1


def test_without_decodes_only_the_largest_candidate_limits_a_step():
    plan = _plan(running_decodes=0, kv_tokens=0, limit_s=1e-6)
    assert plan is not None
    assert plan.schedule.runs == (ChunkRun(2048, 2),)


def test_more_decodes_than_the_largest_chunk_leave_no_room():
    assert _plan(running_decodes=2048, limit_s=10.0) is None


def test_a_single_decode_step_over_the_limit_is_infeasible():
    assert _plan(limit_s=0.010) is None


def test_a_prompt_shorter_than_the_smallest_chunk_takes_one_step_of_a_full_chunk():
    plan = _plan(prompt_tokens=3)
    assert plan is not None
    assert plan.schedule.runs == (ChunkRun(512, 1),)
    assert plan.ttft_s == A100.latency_s(20, 40_000, 3, 0)


def test_the_last_chunk_is_cut_to_what_is_left_where_the_full_one_would_not_be_safe():
    plan = _plan(prompt_tokens=10, candidates=(2048,))
    assert plan is not None
    assert plan.schedule.runs == (ChunkRun(30, 1),)


def test_a_cached_prefix_is_not_computed_again_but_makes_steps_dearer():
    cold, warm = _plan(prompt_tokens=1000), _plan(prompt_tokens=9000, done_tokens=8000)
    assert cold is not None
    assert warm is not None
    assert warm.schedule.steps >= cold.schedule.steps
    assert warm.ttft_s > cold.ttft_s


def test_paper_algorithm_1_counts_the_decodes_as_served_and_ends_short():
    """Algorithm 1 sets served <- served + chi, though a step of chi tokens carries chi - B of the prompt."""
    decodes, prompt, served, schedule = 20, 4096, 0, []
    while served < prompt:
        chi = next(c for c in CANDIDATES if A100.latency_s(decodes, 40_000 + served, c - decodes, served) <= 0.063)
        schedule.append(chi)
        served += chi
    assert sum(chi - decodes for chi in schedule) == prompt - len(schedule) * decodes  # 160 tokens never computed
    ours = _plan()
    assert ours is not None
    assert sum(chi - decodes for chi in ours.schedule.batch_tokens()) >= prompt


def test_schedules_read_as_runs():
    assert str(ChunkSchedule((ChunkRun(512, 3), ChunkRun(256, 2)))) == "3x512 + 2x256"
    assert list(ChunkSchedule((ChunkRun(512, 2), ChunkRun(8, 1))).batch_tokens()) == [512, 512, 8]


@pytest.mark.parametrize(("batch_tokens", "steps"), [(0, 1), (1, 0)])
def test_an_empty_run_is_refused(batch_tokens, steps):
    with pytest.raises(StateError, match="batch_tokens and steps must be >= 1"):
        ChunkRun(batch_tokens, steps)
