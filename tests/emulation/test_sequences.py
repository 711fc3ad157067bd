"""What a step costs, and what comes out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.latency import PrefillTotals
from vllm_kairos.emulation.sequences import SequenceTable, Turn

WORDS = tuple(range(100, 200))


def _table(**prompts: int) -> SequenceTable:
    table = SequenceTable(WORDS)
    for request_id, length in prompts.items():
        table.begin(request_id, length, list(range(length)))
    return table


def test_a_step_of_decodes_and_chunks_of_two_prompts() -> None:
    table = _table(a=100, b=100, c=100, d=100)
    turns = [Turn("a", 120, 1), Turn("b", 99, 1), Turn("c", 10, 20), Turn("d", 0, 64)]
    load = table.load(turns)
    assert (load.running_decodes, load.kv_tokens) == (2, 120 + 99 + 10)
    assert load.chunks == PrefillTotals(1, 84, 10, 20 * 10 + 20 * 20 / 2 + 64 * 64 / 2)


def test_decodes_alone_have_no_chunk() -> None:
    assert _table(a=5).load([Turn("a", 5, 1)]).chunks == PrefillTotals(0, 0, 0, 0.0)


def test_one_token_of_an_unfinished_prompt_is_prefill() -> None:
    assert _table(a=100).load([Turn("a", 50, 1)]).chunks.tokens == 1


def test_nothing_is_said_before_the_prompt_is_through() -> None:
    table = _table(a=100)
    assert table.say([Turn("a", 0, 60)]) == {"a": []}
    assert len(table.say([Turn("a", 60, 40)])["a"]) == 1


def _speech(table: SequenceTable, request_id: str, computed: int, count: int) -> list[int]:
    return [token for step in range(count) for token in table.say([Turn(request_id, computed + step, 1)])[request_id]]


@given(st.integers(1, 40), st.integers(1, 39))
def test_a_continued_sequence_says_what_the_first_would_have(prompt: int, said: int) -> None:
    """So does a request that another engine takes over with what it said so far, or one preempted."""
    table = _table(a=prompt)
    whole = _speech(table, "a", prompt - 1, 40)
    table.begin("b", prompt, [*range(prompt), *whole[:said]])
    assert table.say([Turn("b", 0, prompt + said - 1)]) == {"b": []}
    assert _speech(table, "b", prompt + said - 1, 40 - said) == whole[said:]


def test_an_ended_sequence_leaves_nothing_behind() -> None:
    table = _table(a=3, b=3)
    table.end(["a", "never seen"])
    assert len(table) == 1
    with pytest.raises(KeyError):
        table.load([Turn("a", 0, 1)])
