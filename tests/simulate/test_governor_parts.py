"""The experiments that leave out a part of the governor, and what they have shown."""

import json
from pathlib import Path

import pytest

from tests.simulate.test_governor_rows import group
from vllm_kairos.simulate.experiments import governor
from vllm_kairos.simulate.experiments.governor_parts import PATIENCE, TTFT

RESULTS = Path(__file__).parents[2] / "benchmarks/results/sim"
SETTINGS = {PATIENCE.name: ("patience_tokens", {0.0, 8.0}), TTFT.name: ("ttft_slo_ms", {None, 4000.0})}
EACH = pytest.mark.parametrize("experiment", [PATIENCE, TTFT], ids=lambda one: one.name)


def published(experiment):
    return json.loads((RESULTS / f"{experiment.name}.json").read_text())


def test_a_part_is_set_beside_none():
    groups = {label: [] for label in PATIENCE.sweeps()}
    groups["chat-10ms-no-patience"] = [group(governor.OURS, 0.1, 0.2, 0.3, rate_rps=12.0)]
    groups["chat-10ms-with-patience"] = [group(governor.OURS, 0.9, 1.0, 1.0, rate_rps=12.0)]
    [row] = PATIENCE.rows(groups)
    assert (row.quantity, row.expected, row.ours) == ("chat-10ms at 12 requests/s: attained", 0.2, 1.0)
    assert (row.spread, row.remark) == ((0.9, 1.0), "without: 0.1 to 0.3")


@EACH
def test_the_two_differ_in_that_part_only(experiment):
    sweeps, (setting, values) = experiment.sweeps(), SETTINGS[experiment.name]
    assert {getattr(config.governor, setting) for config in sweeps.values()} == values
    assert len(sweeps) == 2 * len(governor.EXPERIMENT.sweeps())
    part = experiment.name.removeprefix("governor-")
    assert sweeps[f"mixed-25ms-with-{part}"] == governor.sweeps_of((governor.OURS,))["mixed-25ms"]


@EACH
def test_results_name_their_command_and_have_every_seed(experiment):
    document = published(experiment)
    assert document["command"] == f"kairos simulate --experiment {experiment.name}"
    assert len(document["rows"]) == 32
    for label, config in experiment.sweeps().items():
        assert all(len(point["slo_attainment"]) == len(config.sweep.seeds) for point in document["figures"][label])


def test_patience_never_attains_less_and_on_the_h200_far_more():
    rows = published(PATIENCE)["rows"]
    assert all(row["ours"] >= row["expected"] for row in rows)
    served = [row for row in rows if "-10ms" in row["quantity"] and row["ours"] > 0.9]
    assert max(row["ours"] - row["expected"] for row in served) > 0.6


def test_where_steps_with_prefill_are_cheap_patience_changes_nothing():
    rows = [row for row in published(PATIENCE)["rows"] if "-25ms" in row["quantity"]]
    assert len(rows) == 16
    assert all(row["ours"] == row["expected"] for row in rows)


def test_a_ttft_objective_gains_much_in_overload_and_costs_little():
    gains = [row["ours"] - row["expected"] for row in published(TTFT)["rows"]]
    assert min(gains) > -0.035
    assert max(gains) > 0.4
