"""The running estimate of output lengths."""

from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.lease import OutputLengths


def known(*lengths: int) -> OutputLengths:
    outputs = OutputLengths(window=4)
    for length in lengths:
        outputs.ended(length)
    return outputs


@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(0, 5000), st.integers(0, 5000))
def test_it_is_longer_than_what_there_is_and_no_longer_than_allowed(lengths: list[int], most: int, produced: int) -> None:
    tokens = known(*lengths).expected(most, produced)
    assert tokens <= most
    assert tokens >= min(most, produced + 1)


def test_the_mean_of_the_lengths_that_are_longer() -> None:
    outputs = known(10, 20, 60)
    assert outputs.expected(1000) == 30
    assert outputs.expected(1000, produced=10) == 40
    assert outputs.expected(1000, produced=59) == 60
    assert outputs.expected(25) == 25


def test_past_all_known_lengths_it_doubles() -> None:
    assert known(10, 20).expected(1000, produced=300) == 600


def test_only_the_last_ones_count() -> None:
    assert known(10_000, 8, 8, 8, 8).expected(1000) == 8


def test_before_anything_ended() -> None:
    assert known().expected(1000) == 256
    assert known().expected(100) == 100
