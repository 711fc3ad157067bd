"""The largest safe chunk, against trying them all."""

from collections.abc import Callable
from math import log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import A100, models
from vllm_kairos.core.governor.bound import BoundedStep, StepBound
from vllm_kairos.core.governor.chunk import NO_CHUNKS, Prompt, largest_chunk, with_chunk
from vllm_kairos.core.governor.price import Price, StepPrice
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import LinearStepModel


@st.composite
def prompts(draw: st.DrawFn) -> Prompt:
    left = draw(st.integers(1, 120))
    done = draw(st.integers(0, 3000))
    block = draw(st.sampled_from([1, 1, 16, 50]))
    whole = draw(st.sampled_from([False, False, True]))
    fewest = left if whole else min(left, block - done % block) if block > 1 else 1
    return Prompt(done, left, fewest, block)


def is_allowed(prompt: Prompt, tokens: int) -> bool:
    if not tokens or tokens == prompt.left_tokens:
        return True
    return prompt.fewest_tokens <= tokens < prompt.left_tokens and (prompt.done_tokens + tokens) % prompt.block_tokens == 0


def price(model: LinearStepModel, decodes: int, kv_tokens: int, chunks: PrefillTotals) -> float:
    return model.packed_step_s(decodes, kv_tokens + chunks.done_tokens, chunks)


class Priced:
    """Prices by the model, or by any function, whose prices must be searched."""

    def __init__(self, step_s: Callable[[PrefillTotals], float]) -> None:
        self.step_s = step_s

    def tokens_within(self, limit_s: float, carried: PrefillTotals, done_tokens: int) -> float | None:
        return None


def exact(model: LinearStepModel, decodes: int, kv_tokens: int) -> StepPrice:
    return StepPrice(model, decodes, kv_tokens, factor=1.0, decodes_s=model.packed_step_s(decodes, kv_tokens, NO_CHUNKS))


def searched(model: LinearStepModel, decodes: int, kv_tokens: int) -> Priced:
    return Priced(exact(model, decodes, kv_tokens).step_s)


PRICES = pytest.mark.parametrize("priced", [exact, searched])


def in_queue_order(chosen: list[int], queue: list[Prompt]) -> PrefillTotals:
    chunks = NO_CHUNKS
    for prompt, tokens in zip(queue, chosen, strict=True):
        chunks = with_chunk(chunks, prompt.done_tokens, tokens) if tokens else chunks
    return chunks


ROUNDING = 1e-12

loads = st.tuples(st.integers(1, 100), st.integers(0, 100_000))


@PRICES
@settings(max_examples=60)
@given(model=models(), load=loads, prompt=prompts(), most=st.integers(0, 150), slack=st.floats(0.5, 3))
def test_one_prompt_against_brute_force(
    priced: Callable[..., Price], model: LinearStepModel, load: tuple[int, int], prompt: Prompt, most: int, slack: float
) -> None:
    limit_s = slack * price(model, *load, with_chunk(NO_CHUNKS, prompt.done_tokens, max(1, prompt.left_tokens // 3)))
    allowed = [tokens for tokens in range(1, most + 1) if is_allowed(prompt, tokens)]
    prices = {tokens: price(model, *load, with_chunk(NO_CHUNKS, prompt.done_tokens, tokens)) for tokens in allowed}
    found = largest_chunk(priced(model, *load), limit_s, NO_CHUNKS, prompt, most)
    assert not found or prices[found] <= limit_s * (1 + ROUNDING)
    assert all(prices[tokens] > limit_s * (1 - ROUNDING) for tokens in allowed if tokens > found)


@PRICES
@settings(max_examples=40)
@given(model=models(), load=loads, queue=st.lists(prompts(), min_size=1, max_size=4), slack=st.floats(0.9, 3))
def test_a_queue_gets_the_most_that_fits_in_its_order(
    priced: Callable[..., Price], model: LinearStepModel, load: tuple[int, int], queue: list[Prompt], slack: float
) -> None:
    """Brute force: all of the prompts before one, any allowed part of it, nothing of those behind."""
    queue = [prompt._replace(fewest_tokens=1, block_tokens=1) for prompt in queue]
    limit_s = slack * price(model, *load, with_chunk(NO_CHUNKS, 500, 60))
    best = 0
    for count, last in enumerate(queue):
        for tokens in range(1, last.left_tokens + 1):
            chosen = [prompt.left_tokens for prompt in queue[:count]] + [tokens] + [0] * (len(queue) - count - 1)
            if price(model, *load, in_queue_order(chosen, queue)) <= limit_s * (1 - ROUNDING):
                best = max(best, sum(chosen))
    step = BoundedStep(StepBound(priced(model, *load), limit_s))
    total, taken = 0, []
    for index, prompt in enumerate(queue):
        tokens = step.largest(prompt, prompt.left_tokens)
        step.grant(index, prompt.done_tokens, tokens)
        total += tokens
        taken.append(tokens)
        if tokens < prompt.left_tokens:
            break
    assert total >= best
    assert not total or price(model, *load, in_queue_order(taken, queue[: len(taken)])) <= limit_s * (1 + ROUNDING)


@settings(max_examples=60)
@given(prices=st.lists(st.floats(0, 1), min_size=2, max_size=600), limit_s=st.floats(0, 1))
def test_any_rising_prices_are_searched_in_logarithmic_time(prices: list[float], limit_s: float) -> None:
    """Steps, jumps and plateaus, too."""
    prices.sort()
    calls = []

    def step_s(chunks: PrefillTotals) -> float:
        calls.append(chunks.tokens)
        return prices[chunks.tokens]

    most = len(prices) - 1
    fitting = [tokens for tokens in range(1, most + 1) if prices[tokens] <= limit_s]
    assert largest_chunk(Priced(step_s), limit_s, NO_CHUNKS, Prompt(0, 10_000), most) == max(fitting, default=0)
    assert len(calls) <= 4 * log2(most) + 6


@pytest.mark.parametrize("budget", [1024, 8192, 65_536])
@pytest.mark.parametrize("limit_s", [0.0125, 0.02, 0.05])
@pytest.mark.parametrize("done_tokens", [0, 30_000])
def test_few_calls_are_enough_for_a_fitted_model(budget: int, limit_s: float, done_tokens: int) -> None:
    calls = []

    def step_s(chunks: PrefillTotals) -> float:
        calls.append(chunks)
        return price(A100, 8, 8000, chunks)

    found = largest_chunk(Priced(step_s), limit_s, NO_CHUNKS, Prompt(done_tokens, 100_000), budget)
    assert found < budget
    assert len(calls) <= 9
    assert largest_chunk(exact(A100, 8, 8000), limit_s, NO_CHUNKS, Prompt(done_tokens, 100_000), budget) == found


def test_a_whole_prompt_waits_for_a_step_that_holds_it() -> None:
    def tokens(limit_s: float) -> int:
        return largest_chunk(exact(A100, 8, 8000), limit_s, NO_CHUNKS, Prompt(0, 500, 500), 8192)

    needed_s = price(A100, 8, 8000, with_chunk(NO_CHUNKS, 0, 500))
    assert (tokens(0.99 * needed_s), tokens(needed_s)) == (0, 500)


def test_the_floor_is_for_the_first_prompt_alone_and_given_back_tokens_count_no_more() -> None:
    step = BoundedStep(StepBound(exact(A100, 8, 8000), 0.001, floor_tokens=16))
    assert step.largest(Prompt(0, 500), 100) == 16
    step.grant("a", 0, 16)
    assert step.largest(Prompt(0, 500), 100) == 0
    step.give_back("a")
    assert step.largest(Prompt(0, 500), 100) == 16


def test_only_a_starving_prompt_gets_more_than_the_floor_when_it_needs_it() -> None:
    def first(starving: bool, prompt: Prompt) -> int:
        bound = StepBound(exact(A100, 8, 8000), 0.001, floor_tokens=16, starving=starving)
        return BoundedStep(bound).largest(prompt, 1000)

    for prompt in (Prompt(0, 500, 500), Prompt(0, 900, 500, 500)):
        assert (first(False, prompt), first(True, prompt)) == (0, 500)
