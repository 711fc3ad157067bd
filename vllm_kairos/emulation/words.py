"""What an emulated model says: plain words, each a function of all tokens before it, as with greedy decoding."""

import re
import zlib
from array import array
from collections.abc import Iterable, Sequence

_WHOLE_WORD = re.compile("[\u0120\u2581][a-z]{2,8}")  # a token that starts a word, as byte-level BPE and SentencePiece write it
_MOST_WORDS = 4096


def printable_words(vocabulary: Iterable[tuple[str, int]]) -> tuple[int, ...]:
    """Ids of tokens that print as one lower-case word each, in order of id; at most 4,096.

    No such token ends a generation, and none shares a character with its neighbours, so that every
    step of a stream shows. Empty when the vocabulary writes word starts in some other way.
    """
    return tuple(sorted(index for text, index in vocabulary if _WHOLE_WORD.fullmatch(text)))[:_MOST_WORDS]


def digest(token_ids: Sequence[int], before: int = 0) -> int:
    """Digest of a sequence; `before` is the digest of what precedes it."""
    return zlib.crc32(array("q", token_ids).tobytes(), before)


def next_token(state: int, words: Sequence[int]) -> int:
    """The token that follows a sequence with digest `state`."""
    return words[(state * 0x9E3779B1 >> 7) % len(words)]
