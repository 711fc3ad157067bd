"""The experiment that sets the governor's patience beside none, and what it has shown."""

import json
from pathlib import Path

from tests.simulate.test_governor_rows import group
from vllm_kairos.simulate.experiments import governor, governor_patience

RESULTS = Path(__file__).parents[2] / "benchmarks/results/sim/governor-patience.json"
PUBLISHED = json.loads(RESULTS.read_text())


def test_patience_is_set_beside_none():
    groups = {label: [] for label in governor_patience.EXPERIMENT.sweeps()}
    groups["chat-10ms-patience-0"] = [group(governor.OURS, 0.1, 0.2, 0.3, rate_rps=12.0)]
    groups["chat-10ms-patience-8"] = [group(governor.OURS, 0.9, 1.0, 1.0, rate_rps=12.0)]
    [row] = governor_patience.EXPERIMENT.rows(groups)
    assert (row.quantity, row.expected, row.ours) == ("chat-10ms at 12 requests/s: attained", 0.2, 1.0)
    assert (row.spread, row.remark) == ((0.9, 1.0), "without: 0.1 to 0.3")


def test_the_two_differ_in_patience_only():
    sweeps = governor_patience.EXPERIMENT.sweeps()
    assert {config.governor.patience_tokens for config in sweeps.values()} == {0.0, 8.0}
    assert len(sweeps) == 2 * len(governor.EXPERIMENT.sweeps())
    assert sweeps["mixed-25ms-patience-8"] == governor.sweeps_of((governor.OURS,))["mixed-25ms"]


def test_results_name_their_command_and_have_every_seed():
    assert PUBLISHED["command"] == "kairos simulate --experiment governor-patience"
    for label, config in governor_patience.EXPERIMENT.sweeps().items():
        assert all(len(point["slo_attainment"]) == len(config.sweep.seeds) for point in PUBLISHED["figures"][label])


def test_patience_never_attains_less_and_on_the_h200_far_more():
    assert len(PUBLISHED["rows"]) == 32
    assert all(row["ours"] >= row["expected"] for row in PUBLISHED["rows"])
    served = [row for row in PUBLISHED["rows"] if "-10ms" in row["quantity"] and row["ours"] > 0.9]
    assert max(row["ours"] - row["expected"] for row in served) > 0.8


def test_where_steps_with_prefill_are_cheap_it_changes_nothing():
    for load in (load for load in governor.EXPERIMENT.sweeps() if load.endswith("-25ms")):
        assert PUBLISHED["figures"][f"{load}-patience-0"] == PUBLISHED["figures"][f"{load}-patience-8"]
