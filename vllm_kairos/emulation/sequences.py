"""The sequences on an emulated engine: what a step computes, and which tokens come out of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.emulation.words import digest, next_token


class StepLoad(NamedTuple):
    """One step as a latency model sees it. `kv_tokens` counts those of every sequence in it, prompts too."""

    running_decodes: int
    kv_tokens: int
    chunks: PrefillTotals


class Turn(NamedTuple):
    """What one step does for one sequence: `tokens` more behind `computed` ones."""

    request_id: str
    computed_tokens: int
    tokens: int


@dataclass(slots=True)
class _Sequence:
    prompt_tokens: int
    length: int  # prompt and everything said so far
    state: int


class SequenceTable:
    """All sequences between their first step and their end."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self._sequences: dict[str, _Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def begin(self, request_id: str, prompt_tokens: int, token_ids: Sequence[int]) -> None:
        """Take in a sequence of `token_ids`, of which the first `prompt_tokens` are its prompt; also one seen before."""
        self._sequences[request_id] = _Sequence(prompt_tokens, len(token_ids), digest(token_ids))

    def end(self, request_ids: Iterable[str]) -> None:
        """Forget sequences; unknown ones are none of ours."""
        for request_id in request_ids:
            self._sequences.pop(request_id, None)

    def load(self, turns: Iterable[Turn]) -> StepLoad:
        """What a step of these turns costs: sums over its decodes and its prompt chunks."""
        decodes = kv_tokens = tokens = done_tokens = 0
        work = 0.0
        for request_id, computed, count in turns:
            kv_tokens += computed
            if count == 1 and computed >= self._sequences[request_id].prompt_tokens - 1:
                decodes += 1
            else:
                tokens += count
                done_tokens += computed
                work += count * computed + count * count * 0.5
        return StepLoad(decodes, kv_tokens, PrefillTotals(1 if tokens else 0, tokens, done_tokens, work))

    def say(self, turns: Iterable[Turn]) -> Mapping[str, list[int]]:
        """The tokens sampled in a step of these turns, by request: one, or none while its prompt is not through."""
        return {turn.request_id: self._say(turn) for turn in turns}

    def _say(self, turn: Turn) -> list[int]:
        sequence = self._sequences[turn.request_id]
        if turn.computed_tokens + turn.tokens < sequence.length:
            return []
        token = next_token(sequence.state, self._words)
        sequence.state = digest((token,), sequence.state)
        sequence.length += 1
        return [token]
