"""Prompts share what their traces share and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.virtual_time import request
from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.prompts import Vocabulary, token_ids
from vllm_kairos.replay.words import WORDS, Measure, text

VOCABULARY = Vocabulary()


def _ids(*hashes: int, tokens: int = 64, index: int = 0, seed: int = 0) -> list[int]:
    blocks = {"block_hashes": hashes, "block_tokens": 16} if hashes else {}
    return token_ids(request(index, prompt_tokens=tokens, **blocks), VOCABULARY, seed)


def test_90_wide_ids_do_not_collapse():
    assert _ids(1)[:16] != _ids(4_294_967_297)[:16]
    assert _ids(2**63 - 1)[:16] != _ids(2**63 - 1 - 2**32)[:16]


def test_90_equal_ids_give_equal_tokens_over_runs():
    assert _ids(7, 8, index=0)[:32] == _ids(7, 8, index=1)[:32]
    assert _ids(7, 8, index=0)[32:] != _ids(7, 8, index=1)[32:]
    assert _ids(7, tokens=17)[:4] == [23715, 25930, 27953, 1736]


def test_another_seed_gives_other_prompts():
    assert _ids(7)[:16] != _ids(7, seed=1)[:16]


@given(blocks=st.lists(st.integers(0, 2**64), max_size=6, unique=True), extra=st.integers(0, 40), cut=st.integers(0, 15))
@settings(max_examples=40)
def test_89_the_prompt_has_the_length_of_the_trace(blocks, extra, cut):
    tokens = max(1, 16 * len(blocks) + extra - cut, 16 * len(blocks) - 15)
    ids = _ids(*blocks, tokens=tokens)
    assert len(ids) == tokens
    assert all(VOCABULARY.low <= token < VOCABULARY.high for token in ids)


def test_a_vocabulary_is_a_range_with_some_choice():
    assert Vocabulary.parse("0:256") == Vocabulary(0, 256)
    for bad in ("10", "a:b", "5:100", "-1:900", "900:100", "0:2147483649"):
        with pytest.raises(ConfigError, match="--vocabulary must be"):
            Vocabulary.parse(bad)


def test_ids_with_half_characters_give_prompts_too():
    row = replace(request(prompt_tokens=20), request_id="\ud800")
    assert len(token_ids(row, VOCABULARY, 0)) == len(text(row, Measure(), "total", 0).split()) == 20


def test_text_has_a_word_for_each_value_of_a_byte():
    assert len(set(WORDS)) == 256


def test_93_text_aims_at_the_length_it_says():
    row = request(prompt_tokens=512)
    measure = Measure(tokens_per_word=1.0, template_tokens=18)
    assert len(text(row, measure, "content", 0).split()) == 512
    assert len(text(row, measure, "total", 0).split()) == 512 - 18
    assert len(text(row, Measure(tokens_per_word=1.25), "total", 0).split()) == round(512 / 1.25)
    assert text(request(prompt_tokens=3), measure, "total", 0).split()


def test_text_shares_what_blocks_share():
    def words(*hashes: int, index: int = 0) -> list[str]:
        row = request(index, prompt_tokens=100, block_hashes=hashes, block_tokens=32)
        return text(row, Measure(tokens_per_word=1.1), "total", 0).split()

    shared = round(64 / 1.1)
    assert words(1, 2, index=0)[:shared] == words(1, 2, index=1)[:shared]
    assert words(1, 2, index=0)[shared:] != words(1, 2, index=1)[shared:]
    assert words(1)[:29] != words(4_294_967_297)[:29]
