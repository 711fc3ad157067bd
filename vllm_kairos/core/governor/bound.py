"""How much prefill one step may carry, asked prompt by prompt."""

from typing import Any

from vllm_kairos.core.governor.chunk import NO_CHUNKS, Prompt, largest_chunk, with_chunk
from vllm_kairos.core.governor.price import Price
from vllm_kairos.core.latency import PrefillTotals

_WORTH = 0.8


class StepBound:
    """The time limit of one step, and the price of chunks in it.

    The first prompt of a step gets `floor_tokens` whatever the limit. Where that is not enough for the chunk that the
    prompt needs, it gets nothing, or, `starving`, that chunk. `patient`: time that this step saves is left to the next.
    """

    __slots__ = ("floor_tokens", "limit_s", "patient", "price", "starving")

    def __init__(
        self, price: Price, limit_s: float, floor_tokens: int = 0, starving: bool = False, patient: bool = False
    ) -> None:
        self.price, self.limit_s = price, limit_s
        self.floor_tokens, self.starving, self.patient = floor_tokens, starving, patient

    def is_full(self, carried: PrefillTotals) -> bool:
        """Whether no chunk of any prompt is in time beside those of `carried`."""
        return self.price.step_s(with_chunk(carried, 0, 1)) > self.limit_s

    def waits(self, carried: PrefillTotals, prompt: Prompt, most_tokens: int, tokens: int) -> bool:
        """Whether the first prompt had better save the time of its `tokens` for a larger chunk in a later step.

        That is where time cuts the chunk short, and more than a fifth of what it adds to the step is the price of having
        prefill in a step at all, which a chunk twice as large pays once, too. To be asked of a `patient` bound.
        """
        if not 0 < tokens < prompt.allowed(most_tokens):
            return False
        step_s, done_tokens = self.price.step_s, prompt.done_tokens
        once_s = step_s(with_chunk(carried, done_tokens, tokens))
        twice_s = step_s(with_chunk(carried, done_tokens, 2 * tokens))
        return twice_s - once_s < _WORTH * (once_s - step_s(carried))

    def floor(self, prompt: Prompt, most_tokens: int) -> int:
        """What the first prompt gets of `most_tokens` whatever the limit."""
        floor_tokens = max(self.floor_tokens, prompt.fewest_tokens) if self.starving else self.floor_tokens
        return prompt.allowed(min(floor_tokens, most_tokens))


class BoundedStep:
    """The chunks that one step carries so far, under a bound."""

    __slots__ = ("_bound", "_carried", "_first", "_granted", "full")

    def __init__(self, bound: StepBound) -> None:
        self._bound = bound
        self._granted: dict[Any, tuple[int, int, bool]] = {}
        self._carried = NO_CHUNKS
        self._first = True  # no prompt under the bound has a chunk yet
        self.full = False
        """Whether it is known that no chunk of any prompt fits any more."""

    def largest(self, prompt: Prompt, most_tokens: int, *, may_wait: bool = True) -> int:
        """The most tokens of one more prompt; `may_wait`: nothing else would cut a larger chunk short."""
        if self.full:
            return 0
        bound, carried = self._bound, self._carried
        tokens = largest_chunk(bound.price, bound.limit_s, carried, prompt, most_tokens)
        if self._first:
            if bound.floor_tokens:
                return max(tokens, bound.floor(prompt, most_tokens))
            if may_wait and bound.patient and bound.waits(carried, prompt, most_tokens, tokens):
                self.full = True
                return 0
        if not tokens:
            self.full = bound.is_full(carried)
        return tokens

    def grant(self, request: Any, done_tokens: int, tokens: int, *, under_bound: bool = True) -> None:
        """`request` gets `tokens` behind its `done_tokens`; `under_bound`: no more than `largest` had left for it."""
        if tokens > 0:
            self._granted[request] = (done_tokens, tokens, under_bound)
            self._carried = with_chunk(self._carried, done_tokens, tokens)
            self._first = self._first and not under_bound

    def give_back(self, request: Any) -> None:
        """It gets none after all, or is asked about again."""
        if self._granted.pop(request, None) is not None:
            granted, self._granted = self._granted, {}
            self._carried, self._first, self.full = NO_CHUNKS, True, False
            for each, (done_tokens, tokens, under_bound) in granted.items():
                self.grant(each, done_tokens, tokens, under_bound=under_bound)
