"""What is derived from cells: rules that hold for any of them, and cases written out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.derive import (
    attains,
    by_rate,
    crossing_rps,
    derived,
    knee_rps,
    paired,
    points_of,
    ratios_to,
    sustained_of,
    sustained_rps,
)
from benchmarks.serving.record import flat
from tests.benchmarks.serving.cells import broken, row

SHARES = st.sampled_from([0.5, 0.9, 0.99, 1.0])
SWEEPS = st.dictionaries(st.integers(1, 9).map(float), st.lists(SHARES, min_size=3, max_size=3), min_size=1, max_size=5)


def _rows(sweep, contender="kairos"):
    return [row(contender, rate, at, slo_attainment=share) for rate, shares in sweep.items() for at, share in enumerate(shares)]


@settings(max_examples=50)
@given(SWEEPS, st.randoms())
def test_the_order_of_cells_changes_nothing(sweep, rng):
    rows = _rows(sweep) + _rows(sweep, "never")
    shuffled = list(rows)
    rng.shuffle(shuffled)
    one, other = (derived(each, ttft_s=4.0, tbt_s=0.07) for each in (rows, shuffled))
    assert one == other


@settings(max_examples=50)
@given(SWEEPS, SHARES, SHARES)
def test_a_stricter_share_is_never_sustained_further(sweep, one, other):
    points = points_of(_rows(sweep))
    strict, loose = (sustained_rps(points, "kairos", attains(share)) for share in (max(one, other), min(one, other)))
    assert (strict or 0.0) <= (loose or 0.0)


@settings(max_examples=50)
@given(SWEEPS)
def test_what_every_repeat_sustains_the_median_does(sweep):
    rates = sustained_of(points_of(_rows(sweep)), 4.0, 0.07)["kairos"]
    assert (rates["all_attain_in_every_repeat"] or 0.0) <= (rates["all_attain"] or 0.0) <= (rates["99_percent_attain"] or 0.0)


@settings(max_examples=50)
@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=4), st.lists(st.floats(0.1, 9.0), min_size=4, max_size=4))
def test_ratios_are_taken_within_a_repeat_and_turn_over(ours, others):
    rows = [row("a", 6.0, at, ttft_p95_s=value) for at, value in enumerate(ours)]
    rows += [row("b", 6.0, at, ttft_p95_s=value) for at, value in enumerate(others)]
    forward, back = paired(rows, "a", "b", "ttft_p95_s")[6.0], paired(rows, "b", "a", "ttft_p95_s")[6.0]
    assert forward == [value / other for value, other in zip(ours, others, strict=False)]
    assert [one * other for one, other in zip(forward, back, strict=True)] == pytest.approx([1.0] * len(ours))
    assert paired(rows, "a", "a", "ttft_p95_s")[6.0] == [1.0] * len(ours)


def test_a_rate_past_one_that_failed_is_not_sustained():
    rows = [row("kairos", rate, slo_attainment=share) for rate, share in ((6.0, 1.0), (7.0, 0.9), (8.0, 1.0))]
    assert sustained_rps(points_of(rows), "kairos", attains(1.0)) == 6.0


def test_a_cell_without_figures_counts_as_not_sustained():
    rows = [row("kairos", 6.0), row("kairos", 7.0), flat(broken("kairos", 7.0, 1))]
    points = points_of(rows)
    assert sustained_rps(points, "kairos", attains(1.0)) == 6.0
    assert [(point.repeats, point.failed_cells) for point in points] == [(1, 0), (1, 1)]


def test_ratios_of_sustained_rates():
    rows = [row(name, rate, slo_attainment=share) for name, rate, share in (
        ("never", 7.0, 1.0), ("never", 9.0, 0.6), ("kairos", 7.0, 1.0), ("kairos", 9.0, 1.0), ("toy-proxy", 7.0, 0.4)
    )]  # fmt: skip
    over = ratios_to(sustained_of(points_of(rows), 4.0, 0.07))
    assert over["never"]["all_attain"] == pytest.approx(9 / 7)
    assert over["toy-proxy"]["all_attain"] is None


def test_the_crossing_lies_on_the_line():
    assert crossing_rps([(7.0, 1.0), (8.0, 0.98)], 0.99) == pytest.approx(7.5)
    assert crossing_rps([(7.0, 1.0), (8.0, 1.0)], 0.99) is None
    assert crossing_rps([(7.0, 0.5), (8.0, 0.4)], 0.99) is None


def test_the_knee_is_the_first_rate_over_the_objective():
    rows = [row("never", rate, ttft_p95_s=value) for rate, value in ((6.0, 2.0), (7.0, 4.5), (8.0, 9.0))]
    assert knee_rps(points_of(rows), 4.0) == 7.0
    assert knee_rps(points_of(rows), 10.0) is None


def test_the_cut_and_never_worse_at_each_rate():
    values = {"never": 4.0, "kairos": 1.0, "always": 0.9}
    rows = [row(name, 8.0, at, ttft_p95_s=value) for name, value in values.items() for at in range(3)]
    (found,) = by_rate(rows, points_of(rows))
    assert found["p95_ttft_cut"] == pytest.approx(0.75)
    assert found["p95_ttft_cut_of"] == pytest.approx({"kairos": 0.75, "always": 0.775})
    assert found["p95_ttft_over_better"] == pytest.approx(1.0 / 0.9)
    assert found["never_worse"] is False


def test_nothing_is_derived_from_nothing():
    found = derived([], ttft_s=4.0, tbt_s=0.07)
    assert found["sustained_rps"] == {}
    assert found["knee_rps"] is None
