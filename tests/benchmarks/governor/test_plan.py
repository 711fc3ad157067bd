"""Which cells run on which start of servers, and in which order."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.governor.plan import expected_s, runs
from tests.benchmarks.governor.records import case

CASES = (case("one"), case("two", load={"workload": "LPHD"}), case("other", tbt_slo_ms=100.0, recovery_rps=1.0))


def _cells(cases, repeats):
    return [(place.case.name, place.key) for run in runs(cases, repeats) for place in run.places]


@settings(max_examples=20)
@given(st.integers(1, 4), st.sets(st.sampled_from(range(3)), min_size=1))
def test_every_cell_runs_once(repeats, chosen):
    cases = [CASES[at] for at in sorted(chosen)]
    counts = Counter(_cells(cases, repeats))
    assert set(counts.values()) == {1}
    # Three contenders at two rates, and one at one.
    assert len(counts) == repeats * len(cases) * 7


def test_cases_with_equal_servers_share_them():
    first = next(iter(runs(CASES, 1)))
    assert [place.case.name for place in first.places] == ["one", "one", "two", "two"]
    assert len(list(runs(CASES, 1))) == 2 * 3 + 3


def test_a_scaled_profile_gets_a_fresh_server_for_each_cell():
    scaled = [run for run in runs(CASES, 2) if run.contender.is_scaled]
    assert len(scaled) == 2 * 3
    assert all(len(run.places) == 1 for run in scaled)
    assert [run.places[0].key.rate_rps for run in scaled[:3]] == [2.0, 2.0, 1.0]


def test_contenders_take_turns_at_going_first():
    firsts = {run.places[0].key.repeat: run.contender.name for run in reversed(list(runs(CASES[:1], 4)))}
    assert firsts == {0: "stock", 1: "fixed-256", 2: "governor", 3: "governor-x0.7"}


def test_no_two_runs_or_cells_share_a_file(tmp_path):
    every = list(runs(CASES, 3))
    assert len({run.name for run in every}) == len(every)
    paths = [place.path(tmp_path) for run in every for place in run.places]
    assert len(set(paths)) == len(paths)


def test_what_is_done_is_left_out_and_takes_no_time():
    run = next(iter(runs(CASES, 1)))
    rest = run.without(lambda place: place.case.name == "one")
    assert [place.case.name for place in rest.places] == ["two", "two"]
    assert 0 < expected_s([rest]) < expected_s([run])
