"""The largest chunk of a prompt that a step can carry by a time limit, beside the chunks it carries already."""

from collections.abc import Callable
from typing import NamedTuple

from vllm_kairos.core.governor.price import Price
from vllm_kairos.core.latency import PrefillTotals

NO_CHUNKS = PrefillTotals(0, 0, 0, 0.0)


class Prompt(NamedTuple):
    """A prompt that waits for prefill, and where its chunks may end.

    A chunk holds at least `fewest_tokens`; all that is left for a prompt that must run whole. It ends at the
    prompt's end or at a multiple of `block_tokens` from the prompt's beginning (the state block of a hybrid model).
    """

    done_tokens: int
    left_tokens: int
    fewest_tokens: int = 1
    block_tokens: int = 1

    def allowed(self, tokens: int) -> int:
        """The largest allowed chunk of at most `tokens`; 0 when there is none."""
        if tokens >= self.left_tokens:
            return self.left_tokens
        if self.block_tokens > 1:
            tokens -= (self.done_tokens + tokens) % self.block_tokens
        return tokens if tokens >= self.fewest_tokens else 0


def with_chunk(carried: PrefillTotals, done_tokens: int, tokens: int) -> PrefillTotals:
    """What a step adds up to that also carries `tokens` behind `done_tokens` of one more prompt."""
    _, all_tokens, all_done_tokens, work = carried
    added_work = tokens * done_tokens + tokens * tokens * 0.5
    return PrefillTotals(1, all_tokens + tokens, all_done_tokens + done_tokens, work + added_work)


def largest_chunk(price: Price, limit_s: float, carried: PrefillTotals, prompt: Prompt, most_tokens: int) -> int:
    """Return the most tokens of `prompt` with which the step takes at most `limit_s`; 0 when none fit.

    Where `price` knows how many tokens reach the limit that is all (exact up to rounding); else a step is priced once
    for a chunk that fits whole, or O(log most_tokens) times, some six where prices bend little. Asked of the prompts in
    queue order, each with what those before it got in `carried`, the chunks add up to the most prefill that the step can
    hold in that order.
    """
    whole = prompt.allowed(most_tokens)
    if not whole:
        return 0
    solution = price.tokens_within(limit_s, carried, prompt.done_tokens)
    if solution is None:
        return prompt.allowed(_search(price, limit_s, carried, prompt.done_tokens, whole))
    if solution >= whole:
        return whole
    return prompt.allowed(int(solution)) if solution >= 1 else 0


def _search(price: Price, limit_s: float, carried: PrefillTotals, done_tokens: int, most_tokens: int) -> int:
    """The most tokens behind `done_tokens`, up to `most_tokens`, whose price is within the limit; 0 without one."""
    step_s = price.step_s
    _, other_tokens, other_done_tokens, other_work = carried
    all_done_tokens = other_done_tokens + done_tokens

    def price_s(tokens: int) -> float:  # as with_chunk, spelled out: it is called most
        work = other_work + tokens * (done_tokens + tokens * 0.5)
        return step_s(PrefillTotals(1, other_tokens + tokens, all_done_tokens, work))

    most_s = price_s(most_tokens)
    return most_tokens if most_s <= limit_s else _last_safe(price_s, limit_s, most_tokens, most_s)


def _last_safe(step_s: Callable[[int], float], limit_s: float, unsafe: int, unsafe_s: float) -> int:
    """The last number from 1 to below `unsafe` whose price is within the limit; 0 without one.

    A binary search that guesses where prices meet the limit: on the line between its bounds, and from a safe
    guess one beyond where the line through it and the safe one before leads. Prices that bend upwards lie between.
    Every fourth guess is the middle, so that it stays a binary search whatever the prices.
    """
    safe, safe_s, round_number = 1, step_s(1), 0
    if safe_s > limit_s:
        return 0
    guess = safe + _tokens_until(limit_s, safe, safe_s, unsafe, unsafe_s)
    while unsafe - safe > 1:
        round_number += 1
        guess = min(max(guess, safe + 1), unsafe - 1) if round_number % 4 else (safe + unsafe) // 2
        guess_s = step_s(guess)
        if guess_s <= limit_s:
            ahead = _tokens_until(limit_s, safe, safe_s, guess, guess_s) + 1
            guess, safe, safe_s = safe + ahead, guess, guess_s
        else:
            unsafe, unsafe_s = guess, guess_s
            guess = safe + _tokens_until(limit_s, safe, safe_s, unsafe, unsafe_s)
    return safe


def _tokens_until(limit_s: float, start: int, start_s: float, end: int, end_s: float) -> int:
    """How far from `start` the line to `end` meets the limit."""
    rise_s = end_s - start_s
    return int((end - start) * min((limit_s - start_s) / rise_s, 1e6)) if rise_s > 0 else 10**9
