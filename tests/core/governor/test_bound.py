"""What prompts of a queue get under a bound, against its rules spelled out over every chunk granted before."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies import models
from vllm_kairos.core.governor import NO_CHUNKS, BoundedStep, Prompt, StepBound, largest_chunk, with_chunk
from vllm_kairos.core.governor.price import StepPrice
from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.core.linear import LinearStepModel


@dataclass(frozen=True)
class Asked:
    """One prompt, and how it is asked about."""

    prompt: Prompt
    most_tokens: int
    may_wait: bool
    under_bound: bool


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    left = draw(st.integers(1, 200))
    prompt = Prompt(draw(st.integers(0, 2000)), left, draw(st.sampled_from([1, 1, left])))
    return Asked(prompt, draw(st.integers(1, 250)), draw(st.booleans()), draw(st.sampled_from([True, True, False])))


class Spelled:
    """The same step, with nothing kept but what was granted."""

    def __init__(self, bound: StepBound) -> None:
        self.bound, self.granted = bound, list[tuple[int, int, bool]]()
        self.over = False

    def largest(self, asked: Asked) -> int:
        bound, prompt, carried = self.bound, asked.prompt, self.carried()
        if self.over:
            return 0
        first = not any(under_bound for _, _, under_bound in self.granted)
        tokens = largest_chunk(bound.price, bound.limit_s, carried, prompt, asked.most_tokens)
        if first and bound.floor_tokens:
            needed = max(bound.floor_tokens, prompt.fewest_tokens) if bound.starving else bound.floor_tokens
            return max(tokens, prompt.allowed(min(needed, asked.most_tokens)))
        cut_short = 0 < tokens < prompt.allowed(asked.most_tokens)
        if first and asked.may_wait and bound.patient and cut_short:
            none_s, once_s, twice_s = (self._price_s(prompt, size) for size in (0, tokens, 2 * tokens))
            if twice_s - once_s < 0.8 * (once_s - none_s):
                self.over = True
                return 0
        self.over = not tokens and bound.price.step_s(with_chunk(carried, 0, 1)) > bound.limit_s
        return tokens

    def carried(self) -> PrefillTotals:
        carried = NO_CHUNKS
        for done_tokens, tokens, _ in self.granted:
            carried = with_chunk(carried, done_tokens, tokens)
        return carried

    def _price_s(self, prompt: Prompt, size: int) -> float:
        carried = self.carried()
        return self.bound.price.step_s(with_chunk(carried, prompt.done_tokens, size) if size else carried)


@settings(max_examples=200, deadline=None)
@given(
    model=models(),
    decodes=st.integers(0, 60),
    share=st.floats(0.5, 4.0),
    floor_tokens=st.sampled_from([0, 0, 16]),
    starving=st.booleans(),
    patient=st.booleans(),
    queue=st.lists(questions(), min_size=1, max_size=8),
)
def test_every_prompt_gets_what_the_rules_say(
    model: LinearStepModel,
    decodes: int,
    share: float,
    floor_tokens: int,
    starving: bool,
    patient: bool,
    queue: list[Asked],
) -> None:
    decodes_s = model.packed_step_s(decodes, 8000, NO_CHUNKS)
    price = StepPrice(model, decodes, 8000, 1.1, decodes_s)
    limit_s = share * price.step_s(with_chunk(NO_CHUNKS, 0, 1))
    bound = StepBound(price, limit_s, floor_tokens, starving, patient)
    step, spelled = BoundedStep(bound), Spelled(bound)
    for index, asked in enumerate(queue):
        tokens = step.largest(asked.prompt, asked.most_tokens, may_wait=asked.may_wait)
        assert tokens == spelled.largest(asked)
        assert step.full == spelled.over
        if tokens:
            step.grant(index, asked.prompt.done_tokens, tokens, under_bound=asked.under_bound)
            spelled.granted.append((asked.prompt.done_tokens, tokens, asked.under_bound))
