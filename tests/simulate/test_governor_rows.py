"""What the governor's experiment makes of several seeds."""

from types import SimpleNamespace

import pytest

from vllm_kairos.simulate.experiment_run import texts
from vllm_kairos.simulate.experiments import governor
from vllm_kairos.simulate.experiments.experiment import Row, spread_of
from vllm_kairos.simulate.table import Group


def group(policy, *shares, rate_rps=20.0):
    return Group(policy, rate_rps, tuple(SimpleNamespace(slo_attainment=share) for share in shares))


def rows_of(ours, fixed):
    groups = {label: [] for label in governor.EXPERIMENT.sweeps()}
    groups["chat-25ms"] = [group("aggregated:512", *fixed), group(governor.OURS, *ours)]
    return {row.quantity: row for row in governor.EXPERIMENT.rows(groups)}


def test_goodput_is_the_median_with_its_spread():
    row = rows_of((1.0, 0.9, 0.95), (0.5, 0.6, 0.7))["chat-25ms: governor's goodput"]
    assert (row.ours, row.spread) == (pytest.approx(19), (pytest.approx(18), pytest.approx(20)))


def test_a_gain_has_the_spread_of_each_seeds_own():
    row = rows_of((1.0, 0.9, 0.95), (0.5, 0.6, 0.7))["chat-25ms: governor over best fixed chunk"]
    assert row.ours == pytest.approx(19 / 12)
    assert row.spread == (pytest.approx(0.95 / 0.7), pytest.approx(2))


def test_a_gain_over_nothing_has_no_spread():
    assert rows_of((1.0, 0.9, 0.8), (0.0, 0.1, 0.1))["chat-25ms: governor over best fixed chunk"].spread is None


@pytest.mark.parametrize(("ours", "named"), [(0.49, False), (0.48, True)])
def test_losses_of_more_than_two_per_cent_are_named(ours, named):
    rows = rows_of((ours,) * 3, (0.4, 0.5, 0.6))
    name = "governor loses, chat-25ms at 20 requests/s, beside 512 tokens"
    assert (name in rows) is named
    if named:
        assert rows[name].remark == "0.48 attained against 0.50"


def test_a_spread_is_shown_and_in_the_json_where_there_is_one():
    alone, several = (Row(quantity="q", expected=None, ours=2.0, spread=spread_of(values)) for values in ((2.0,), (3.0, 1.0)))
    assert "spread" not in alone.as_json()
    assert several.as_json()["spread"] == (1.0, 3.0)
    assert [text[-1] for text in texts([alone, several])] == ["", "1 to 3 over the seeds"]
