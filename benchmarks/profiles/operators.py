"""Whole engine steps added up from measured operators."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.fitting.features import Sample


@dataclass(frozen=True, kw_only=True)
class Operators:
    """The parts of one model's step on one device, in seconds; attention and linear parts are of one layer."""

    layers: int
    linear_s: Callable[[int], float]
    """By tokens in the step: matrix products, norms, activation, and all-reduce where there are several devices."""
    prefill_attention_s: Callable[[int, int], float]
    """By new and cached tokens of one sequence."""
    decode_attention_s: Mapping[tuple[int, int], float]
    """By sequences and cached tokens of each."""
    head_s: Callable[[int], float]
    """By sequences: what comes once per step."""

    def step_s(self, tokens: int, done: int, decodes: int, context: int) -> float:
        """One step of a prompt chunk and a decode batch of equal contexts."""
        attention_s = self.prefill_attention_s(tokens, done) if tokens else 0.0
        attention_s += self.decode_attention_s[decodes, context] if decodes else 0.0
        rows = decodes + (1 if tokens else 0)
        return self.layers * (self.linear_s(tokens + decodes) + attention_s) + self.head_s(rows)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Which steps to add up: every combination that the KV memory holds."""

    tokens: Sequence[int]
    done: Sequence[int]
    decodes: Sequence[int]
    most_prompt_tokens: int
    most_mixed_tokens: int
    kv_capacity_tokens: int

    def prompts(self) -> Iterator[tuple[int, int]]:
        """Chunks and the tokens before them."""
        for tokens in self.tokens:
            yield from ((tokens, done) for done in self.done if tokens + done <= self.most_prompt_tokens)

    def batches(self, measured: Mapping[tuple[int, int], float]) -> Iterator[tuple[int, int]]:
        """Decode batches that attention was measured for."""
        for decodes, context in measured:
            if decodes in self.decodes and decodes * context <= self.kv_capacity_tokens:
                yield decodes, context


def samples(operators: Operators, sizes: Sizes) -> list[Sample]:
    """Return prefill, decode and mixed steps; each is a configuration of its own."""
    prompts = list(sizes.prompts())
    batches = list(sizes.batches(operators.decode_attention_s))
    shapes = [(*prompt, 0, 0) for prompt in prompts] + [(0, 0, *batch) for batch in batches]
    chunks = [prompt for prompt in prompts if prompt[0] <= sizes.most_mixed_tokens]
    shapes += [(*chunk, *batch) for chunk in chunks for batch in batches if _hold(sizes, chunk, batch)]
    return [step_sample(*shape, operators.step_s(*shape)) for shape in shapes]


def step_sample(tokens: int, done: int, decodes: int, context: int, step_s: float) -> Sample:
    """Return one step of a chunk of `tokens` behind `done` and `decodes` sequences of `context` tokens each."""
    batch = BatchShape(running_decodes=decodes, kv_tokens=decodes * context + done, prefill_tokens=tokens, done_tokens=done)
    return Sample(batch=batch, step_s=step_s, configuration=f"n{tokens}-p{done}-b{decodes}-c{context}")


def _hold(sizes: Sizes, chunk: tuple[int, int], batch: tuple[int, int]) -> bool:
    return batch[0] * batch[1] + sum(chunk) <= sizes.kv_capacity_tokens
