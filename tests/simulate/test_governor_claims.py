"""The committed results of the governor's experiment bear out what docs/governor.md says of them."""

import json
from pathlib import Path
from statistics import median

from vllm_kairos.simulate.experiments.governor import EXPERIMENT, FIXED, OURS

RESULTS = Path(__file__).parents[2] / "benchmarks/results/sim"


def document(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


GOVERNOR = document("governor")


def attained():
    """By load, rate and policy."""
    figures = GOVERNOR["figures"]
    return {(load, one["rate_rps"], one["policy"]): median(one["slo_attainment"]) for load in figures for one in figures[load]}


def test_results_name_their_command():
    assert GOVERNOR["command"] == "kairos simulate --experiment governor"


def test_results_are_of_three_seeds_on_the_loads_and_chunks_that_the_experiment_has():
    now = EXPERIMENT.sweeps()
    assert list(GOVERNOR["figures"]) == list(now)
    for label, points in GOVERNOR["figures"].items():
        assert GOVERNOR["sweeps"][label]["sweep"]["seeds"] == list(now[label].sweep.seeds) == [0, 1, 2]
        assert all(len(point["slo_attainment"]) == 3 for point in points)
        assert {point["policy"] for point in points} == {*FIXED, OURS}
    assert {int(policy.partition(":")[2]) for policy in FIXED} == {64 << power for power in range(8)}


def test_at_no_load_does_it_lose_to_the_best_fixed_chunk():
    shares = attained()
    assert len(shares) == 9 * 32
    assert all(shares[load, rate, OURS] >= share for (load, rate, _), share in shares.items())
    assert not [row for row in GOVERNOR["rows"] if row["quantity"].startswith("governor loses")]


def test_every_load_gains_at_its_best_rate():
    gains = [row["ours"] for row in GOVERNOR["rows"] if row["quantity"].endswith("governor over best fixed chunk")]
    assert len(gains) == 8
    assert 1.03 <= min(gains) < max(gains) <= 1.91


def test_without_a_ttft_objective_four_cells_lose_in_overload():
    shares, figures = attained(), document("governor-ttft")["figures"]
    best = {key: max(shares[(*key, policy)] for policy in FIXED) for key in {key[:2] for key in shares}}
    lost = {
        (load, one["rate_rps"])
        for load in GOVERNOR["figures"]
        for one in figures[f"{load}-no-ttft"]
        if median(one["slo_attainment"]) < 0.98 * best[load, one["rate_rps"]]
    }
    assert lost == {("long-context-10ms", 1.2), ("bursty-10ms", 5.0), ("mixed-10ms", 5.0), ("mixed-10ms", 4.0)}
    assert max(best[key] for key in lost) < 0.83
