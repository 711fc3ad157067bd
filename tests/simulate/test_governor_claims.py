"""The committed results of the governor's experiment bear out what docs/governor.md says of them."""

import json
from pathlib import Path
from statistics import median

import pytest

from vllm_kairos.simulate.experiments.governor import EXPERIMENT, OURS

RESULTS = Path(__file__).parents[2] / "benchmarks/results/sim"
COMMANDS = {
    "governor": "kairos simulate --experiment governor",
    "governor-ttft": "kairos simulate --experiment governor --governor-ttft-slo-ms 4000 --policy aggregated",
}


def document(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def attained(name):
    """By load, rate and policy."""
    figures = document(name)["figures"]
    return {(load, one["rate_rps"], one["policy"]): median(one["slo_attainment"]) for load in figures for one in figures[load]}


def best_goodput(shares, load, *, ours):
    return max(rate * share for (at, rate, policy), share in shares.items() if at == load and (policy == OURS) is ours)


@pytest.mark.parametrize("name", COMMANDS)
def test_results_name_their_command(name):
    assert document(name)["command"] == COMMANDS[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_results_are_of_three_seeds_on_the_loads_that_the_experiment_has(name):
    published, now = document(name), EXPERIMENT.sweeps()
    assert list(published["figures"]) == list(now)
    for label, points in published["figures"].items():
        assert published["sweeps"][label]["sweep"]["seeds"] == list(now[label].sweep.seeds) == [0, 1, 2]
        assert all(len(point["slo_attainment"]) == 3 for point in points)


def test_with_a_ttft_objective_no_load_loses_goodput_to_the_best_fixed_chunk():
    fixed, ours = attained("governor"), attained("governor-ttft")
    for load in {load for load, _, _ in fixed}:
        assert best_goodput(ours, load, ours=True) >= best_goodput(fixed, load, ours=False)


def test_nothing_is_lost_where_a_fixed_chunk_attains_most():
    shares = attained("governor")
    kept_up = [(key, share) for key, share in shares.items() if key[2] != OURS and share >= 0.9]
    assert len(kept_up) > 40
    assert all(shares[load, rate, OURS] >= share for (load, rate, _), share in kept_up)


def test_losses_are_named_as_the_page_has_them():
    lost = [row for row in document("governor")["rows"] if row["quantity"].startswith("governor loses")]
    assert len(lost) == 4
    assert all("-10ms" in row["quantity"] for row in lost)


def test_with_a_ttft_objective_two_cells_lose_to_the_fixed_chunk_of_that_rate():
    fixed, ours = attained("governor"), attained("governor-ttft")
    lost = {key[:2] for key, share in fixed.items() if key[2] != OURS and share > ours[(*key[:2], OURS)]}
    assert lost == {("chat-25ms", 35.0), ("mixed-25ms", 9.0)}


def test_all_losses_are_in_overload():
    shares = attained("governor")
    lost = [key for key in shares if shares[key] > shares[key[0], key[1], OURS]]
    assert len({key[:2] for key in lost}) == 4
    assert max(shares[key] for key in lost) < 0.83
