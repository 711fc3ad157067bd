"""What an emulated model says."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.emulation.words import digest, next_token, printable_words

TOKENS = st.lists(st.integers(0, 200_000), max_size=30)


def test_only_whole_plain_words_are_said() -> None:
    vocabulary = {"\u0120house": 7, "\u2581tree": 3, "house": 1, "\u0120House": 2, "\u0120a": 4, "\u0120\u0120x": 5, "</s>": 0}
    assert printable_words(vocabulary.items()) == (3, 7)


def test_there_is_an_end_to_the_words() -> None:
    letters = "abcdefghijklmnopqrst"
    vocabulary = [
        (f"\u0120{a}{b}{c}", index)
        for index, (a, b, c) in enumerate((a, b, c) for a in letters for b in letters for c in letters)
    ]
    assert len(printable_words(vocabulary)) == 4096


@given(TOKENS, TOKENS)
def test_a_sequence_may_be_digested_in_parts(first: list[int], second: list[int]) -> None:
    assert digest(second, digest(first)) == digest(first + second)


def test_the_next_token_depends_on_the_first_one() -> None:
    words = range(1000)
    said = {next_token(digest([first, *range(50)]), words) for first in range(50)}
    assert len(said) > 25
