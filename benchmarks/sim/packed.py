"""Which prompts a prefill step held: a node that takes them in order tells it by the step's tokens alone."""

from collections.abc import Iterator, Sequence

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.wire.messages import StepSample


def packed_steps(
    steps: Sequence[StepSample], prompts: Sequence[int], budget_tokens: int
) -> Iterator[tuple[float, PrefillTotals]]:
    """Seconds and features of every step, prompts taken in order; ends where a step does not fit the prompts left."""
    waiting = [[tokens, 0] for tokens in prompts]  # left, done
    at = 0
    for step in steps:
        left = min(step.prefill_tokens, budget_tokens)
        chunks = []
        while left and at < len(waiting):
            tokens = min(left, waiting[at][0])
            chunks.append((tokens, waiting[at][1]))
            waiting[at][0] -= tokens
            waiting[at][1] += tokens
            left -= tokens
            at += not waiting[at][0]
        if left or not chunks:
            return
        yield step.step_s, totals(chunks)


def totals(chunks: Sequence[tuple[int, int]]) -> PrefillTotals:
    """Features of one step that carries chunks of (tokens, done tokens)."""
    return PrefillTotals(
        steps=1,
        tokens=sum(tokens for tokens, _ in chunks),
        done_tokens=sum(done for _, done in chunks),
        attention_work=sum(tokens * done + tokens * tokens * 0.5 for tokens, done in chunks),
    )
