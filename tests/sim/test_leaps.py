"""Many steps taken as one event equal the same steps taken one by one."""

import random
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sim.clusters import cluster, requests, run
from tests.sim.test_conservation import POLICIES, loads, specs
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.decodes import DecodeGroup
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.leap import Leap
from vllm_kairos.sim.simulator import Outcome
from vllm_kairos.workload.request import TraceRequest, Workload


def one_by_one(spec: ClusterSpec, load: Workload, policy: str) -> Outcome:
    with mock.patch.object(Engine, "_may_leap", return_value=False):
        return run(spec, load, policy)


def gap_sums(outcome: Outcome) -> dict[tuple[str, int], tuple[int, float]]:
    """Number and sum of gaps by engine and cause."""
    sums: dict[tuple[str, int], tuple[int, float]] = {}
    for engine in outcome.engines:
        for gap in engine.gaps:
            count, total_s = sums.get((engine.name, gap.cause), (0, 0.0))
            steps_s = gap.steps * gap.first_s + gap.slope_s * gap.steps * (gap.steps - 1) / 2
            sums[engine.name, gap.cause] = count + gap.decodes * gap.steps, total_s + gap.decodes * steps_s
    return sums


def check_equal(spec: ClusterSpec, load: Workload, policy: str) -> None:
    leaping, stepping = run(spec, load, policy), one_by_one(spec, load, policy)
    for one, other in zip(leaping.requests, stepping.requests, strict=True):
        assert one.ttft_s == pytest.approx(other.ttft_s, rel=1e-9)
        assert one.finished_s == pytest.approx(other.finished_s, rel=1e-9)
        chosen = [
            (type(r.decision), getattr(r.decision, "route", ""), getattr(r.decision, "decode_node", "")) for r in (one, other)
        ]
        assert chosen[0] == chosen[1]
        assert one.preemptions == other.preemptions
    sums, expected = gap_sums(leaping), gap_sums(stepping)
    assert sums.keys() == expected.keys()
    for key, (count, total_s) in sums.items():
        assert count == expected[key][0]
        assert total_s == pytest.approx(expected[key][1], rel=1e-9)
    assert [e.steps for e in leaping.engines] == [e.steps for e in stepping.engines]
    assert leaping.events <= stepping.events


@given(spec=specs(), load=loads(), policy=st.sampled_from(POLICIES))
def test_leaps_change_nothing(spec: ClusterSpec, load: Workload, policy: str) -> None:
    check_equal(spec, load, policy)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_leaps_change_nothing_over_a_longer_load(policy: str, async_scheduling: bool) -> None:
    rng = random.Random(8)
    load = requests(*((rng.uniform(0, 10), rng.randint(1, 1500), rng.randint(1, 120)) for _ in range(80)))
    check_equal(cluster(1, 2, kv_blocks=400, async_scheduling=async_scheduling), load, policy)


leaps = st.builds(Leap, st.floats(0, 100), st.floats(1e-3, 1), st.floats(0, 1e-2), st.integers(1, 200))


@given(leap=leaps, share=st.floats(0, 1.2))
def test_a_leap_counts_the_steps_done_by_a_time(leap: Leap, share: float) -> None:
    now_s = leap.start_s + share * (leap.end_s(leap.steps) - leap.start_s)
    ends = [leap.end_s(step) for step in range(1, leap.steps + 1)]
    done = sum(end <= now_s for end in ends)
    assert leap.steps_by(now_s) == done
    under_way = next((step for step, end in enumerate(ends, 1) if end >= now_s), leap.steps)
    assert leap.steps_until(now_s) == under_way
    begins = [leap.start_s, *ends]
    for more in (1, 2, 3):  # the first step whose end sees what arrived by the beginning of the one `more` - 1 before it
        seen = next((step for step in range(more, leap.steps) if begins[step - more] >= now_s), leap.steps)
        assert leap.steps_until(now_s, more) == seen


@given(leap=leaps)
def test_a_step_that_ends_right_now_is_the_last(leap: Leap) -> None:
    for step in range(1, leap.steps + 1):
        assert leap.steps_by(leap.end_s(step)) == step
        assert leap.steps_until(leap.end_s(step)) == step


shapes = st.tuples(st.integers(1, 60), st.integers(2, 60))


@given(members=st.lists(shapes, min_size=1, max_size=8), free=st.integers(0, 60), most=st.integers(0, 100))
def test_a_group_counts_as_its_members_would(members: list[tuple[int, int]], free: int, most: int) -> None:
    """Against sums over every member and token, with members that join later and leave early."""
    group, block = DecodeGroup(4), 4
    jobs = [_decoding(at, prompt, output) for at, (prompt, output) in enumerate(members)]
    for at, job in enumerate(jobs):
        group.join(job)
        if at % 3 == 2:
            group.advance(1)
    if len(jobs) > 4 and jobs[3] in group:
        group.leave(jobs[3])
    contexts = {job: group.context_tokens(job) for job in group}
    assert group.kv_tokens == sum(contexts.values())

    def blocks(steps: int) -> int:
        return sum(-(-(tokens + steps) // block) - -(-tokens // block) for tokens in contexts.values())

    assert [group.new_blocks(steps) for steps in range(20)] == [blocks(steps) for steps in range(20)]
    fitting = max((steps for steps in range(most + 1) if blocks(steps) <= free), default=0)
    assert group.steps_within(free, most) == fitting
    left = {job: job.output_tokens - group.produced_tokens(job) for job in group}
    assert group.steps_to_finish() == min(left.values(), default=-1)
    while len(group):
        steps = group.steps_to_finish()
        left = {job: tokens - steps for job, tokens in left.items()}
        finished = group.advance(steps)
        assert finished == [job for job, tokens in left.items() if tokens == 0]
        assert all(job.produced_tokens == job.output_tokens for job in finished)
        left = {job: tokens for job, tokens in left.items() if tokens}
    assert group.kv_tokens == 0


def _decoding(at: int, prompt: int, output: int) -> Job:
    request = TraceRequest(request_id=str(at), arrival_s=0.0, prompt_tokens=prompt, output_tokens=output)
    return Job(request=request, computed_tokens=prompt, produced_tokens=1)
