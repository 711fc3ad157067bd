"""The prefill path: equal to running the queue step by step, where the paper's formulas are not."""

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import A100, models
from vllm_kairos.core.estimates import prefill_completion_s, queue_totals, queue_wait_s, transfer_s
from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.core.shapes import RequestShape


def drain_s(model: LinearStepModel, queue: list[tuple[int, int]], budget: int) -> float:
    """Run a FIFO queue of (tokens left, tokens done) in steps of `budget` tokens, several prompts to a step."""
    cost, total_s, queue = model.prefill, 0.0, list(queue)
    while queue:
        room, step_s = budget, cost.fixed_s
        while queue and room:
            (left, done), chunk = queue[0], min(room, queue[0][0])
            step_s += cost.at(chunk, done) - cost.fixed_s
            room -= chunk
            queue[0] = (left - chunk, done + chunk)
            if chunk == left:
                queue.pop(0)
        total_s += step_s
    return total_s


def node(queue: tuple[int, ...], budget: int, queued_tokens: int | None = None) -> NodeState:
    total = sum(queue) if queued_tokens is None else queued_tokens
    return NodeState(
        node_id="p0",
        role=Role.PREFILL,
        queued_prompt_tokens=queue,
        queued_prefill_tokens=total,
        token_budget_tokens=budget,
    )


def request(prompt: int, cached: int = 0) -> RequestShape:
    return RequestShape(request_id="r", prompt_tokens=prompt, cached_tokens={"p0": cached})


queues = st.lists(st.integers(1, 6000), max_size=8)


@given(models(), queues, st.integers(1, 20_000), st.integers(0, 3000), st.sampled_from([256, 2048, 8192]))
def test_queue_and_own_prefill_equal_a_step_by_step_run(model, queue, prompt, cached, budget):
    asked = request(prompt, cached)
    new = asked.uncached_tokens("p0")
    ahead = [(tokens, 0) for tokens in queue]
    found_s = prefill_completion_s(model, node(tuple(queue), budget), asked)
    assert found_s == pytest.approx(drain_s(model, [*ahead, (new, prompt - new)], budget), rel=1e-9, abs=1e-12)
    assert queue_wait_s(model, node(tuple(queue), budget)) == pytest.approx(drain_s(model, ahead, budget), rel=1e-9, abs=1e-12)


@given(models(), queues, st.integers(1, 6000), st.integers(1, 20_000))
def test_a_longer_queue_never_means_an_earlier_first_token(model, queue, more, prompt):
    # A cost per cached token depends on where the chunks fall, which a longer queue may improve by a hair.
    model = replace(model, prefill=replace(model.prefill, per_done_token_s=0.0))
    shorter, longer = node(tuple(queue), 2048), node((*queue, more), 2048)
    longer_s = prefill_completion_s(model, longer, request(prompt))
    assert longer_s >= prefill_completion_s(model, shorter, request(prompt)) * (1 - 1e-12)


@given(queues.filter(bool), st.integers(1, 50_000))
def test_what_a_capped_list_leaves_out_still_counts(queue, unlisted):
    listed = queue_totals(tuple(queue), sum(queue), 2048)
    capped = queue_totals(tuple(queue), sum(queue) + unlisted, 2048)
    assert capped.tokens == listed.tokens + unlisted
    assert capped.steps == ceil(capped.tokens / 2048)
    assert capped.attention_work > listed.attention_work


def test_a_queue_known_only_by_its_total_is_not_an_empty_queue():
    assert queue_wait_s(A100, node((), 2048, queued_tokens=8192)) > 4 * A100.latency_s(0, 0, 2048, 0) * 0.99


def test_paper_eq_2_misprices_a_queue_of_short_prompts():
    """Eq. 2 counts fractions of steps and takes half of all outstanding tokens as cached by every chunk."""
    queue, budget = (300,) * 20, 2048
    paper_s = sum(queue) / budget * A100.latency_s(0, 0, budget, sum(queue) // 2)
    true_s = drain_s(A100, [(tokens, 0) for tokens in queue], budget)
    assert queue_wait_s(A100, node(queue, budget)) == pytest.approx(true_s)
    assert abs(paper_s / true_s - 1) > 0.1


def test_paper_eq_3_sums_one_chunk_too_many():
    """Eq. 3 runs i from 0 to ceil(l / chi) inclusive: two steps for a prompt of exactly one chunk."""
    budget = prompt = 2048
    paper_s = sum(A100.latency_s(0, 0, budget, budget * i) for i in range(ceil(prompt / budget) + 1))
    true_s = A100.latency_s(0, 0, prompt, 0)
    assert prefill_completion_s(A100, node((), budget), request(prompt)) == pytest.approx(true_s)
    assert paper_s > 2 * true_s


def test_short_prompts_share_a_step():
    together = prefill_completion_s(A100, node((100, 100, 100), 2048), request(100))
    assert together < 2 * A100.latency_s(0, 0, 400, 0)
    assert queue_totals((100, 100, 100), 300, 2048).steps == 1


def test_a_transfer_waits_for_what_is_queued_on_its_link():
    link = LinkState(prefill_node="p0", bandwidth_bytes_per_s=1e9, latency_s=0.002, queued_bytes=10**9)
    assert transfer_s(link, 5 * 10**8, 1e10) == pytest.approx(0.002 + 1.5)
    assert transfer_s(LinkState(prefill_node="p0"), 10**9, 1e10) == pytest.approx(0.1)
    assert transfer_s(None, 10**9, 1e10) == pytest.approx(0.1)
