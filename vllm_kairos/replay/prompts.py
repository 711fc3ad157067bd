"""Prompts that a trace does not have: token ids drawn from what it does have, block ids and request ids.

Equal block ids give equal tokens, over requests and over runs with one seed; different ids give independent ones,
however wide they are. What lies past a request's blocks is its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import shake_128
from typing import Self

import numpy as np
from numpy.typing import NDArray

from vllm_kairos.errors import ConfigError
from vllm_kairos.workload.request import TraceRequest

_LEAST_CHOICE = 256
_HIGHEST = 2**31  # as far as engines' token ids go


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Token ids to draw from, `low` to `high` - 1. The default avoids special and byte tokens of common models.

    Raises ConfigError for a range that is empty or too small for prompts to differ.
    """

    low: int = 1_000
    high: int = 30_000

    def __post_init__(self) -> None:
        if self.low < 0 or self.high - self.low < _LEAST_CHOICE or self.high > _HIGHEST:
            rule = f"LOW:HIGH with LOW >= 0, HIGH - LOW >= {_LEAST_CHOICE} and HIGH <= {_HIGHEST}"
            raise ConfigError(f"--vocabulary must be {rule}, got {self.low}:{self.high}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `LOW:HIGH`. Raises ConfigError."""
        try:
            low, high = (int(part) for part in text.split(":"))
        except ValueError:
            raise ConfigError(f"--vocabulary must be LOW:HIGH, two token ids, got {text!r}") from None
        return cls(low, high)


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a prompt that is drawn from one label."""

    label: str
    tokens: int

    def digest(self, length: int) -> bytes:
        """So many bytes of its own. A trace's ids may hold half characters."""
        return shake_128(self.label.encode(errors="surrogatepass")).digest(length)


def parts(request: TraceRequest, prompt_tokens: int, seed: int) -> Iterator[Part]:
    """The request's blocks and then its own rest, `prompt_tokens` in all; the last block may be cut short."""
    left = prompt_tokens
    for block in request.block_hashes:
        if left <= 0:
            return
        yield Part(f"{seed}/block/{block}", min(request.block_tokens, left))
        left -= request.block_tokens
    if left > 0:
        yield Part(f"{seed}/own/{request.request_id}", left)


def token_ids(request: TraceRequest, vocabulary: Vocabulary, seed: int) -> list[int]:
    """The prompt as exactly `request.prompt_tokens` token ids."""
    drawn = [_draw(part, vocabulary) for part in parts(request, request.prompt_tokens, seed)]
    ids: list[int] = np.concatenate(drawn).tolist()
    return ids


def _draw(part: Part, vocabulary: Vocabulary) -> NDArray[np.uint32]:
    numbers = np.frombuffer(part.digest(4 * part.tokens), dtype="<u4")
    span = np.uint32(vocabulary.high - vocabulary.low)
    return numbers % span + np.uint32(vocabulary.low)
