"""Which cells a sweep has, and in which order."""

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.sweep import CellKey, cells, expected_s, rotated

NAMES = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=5, unique=True)
RATES = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=4, unique=True)


@settings(max_examples=30)
@given(NAMES, RATES, st.integers(1, 4))
def test_every_cell_comes_once_and_repeats_are_whole(names, rates, repeats):
    keys = list(cells(names, rates, repeats))
    assert len(set(keys)) == len(keys) == len(names) * len(rates) * repeats
    assert [key.repeat for key in keys] == sorted(key.repeat for key in keys)
    assert len({key.file_name for key in keys}) == len(keys)


@settings(max_examples=30)
@given(NAMES, RATES)
def test_each_contender_is_first_equally_often_over_as_many_repeats_as_there_are(names, rates):
    keys = list(cells(names, rates, len(names)))
    for rate in rates:
        firsts = [next(k.contender for k in keys if (k.repeat, k.rate_rps) == (at, rate)) for at in range(len(names))]
        assert sorted(firsts) == sorted(names)


def test_rotation_keeps_the_cyclic_order():
    assert rotated(["a", "b", "c"], 4) == ["b", "c", "a"]


def test_prompts_differ_between_cells():
    keys = list(cells(["never", "kairos"], [6.0, 7.5], 2))
    assert len({key.prompt_seed for key in keys}) == len(keys)


def test_file_names_are_plain():
    assert CellKey(repeat=1, rate_rps=6.5, contender="static-length:2048").file_name == "r1-6.5-static-length-2048.json"


def test_what_is_left_takes_as_much_more_than_its_load_as_what_is_done():
    assert expected_s([40.0, 40.0], done_loads_s=[40.0], took_s=[60.0]) == 120.0
    assert expected_s([40.0]) > 40.0
