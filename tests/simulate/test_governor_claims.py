"""The committed results of the governor's experiment bear out what docs/governor.md says of them."""

import json
from pathlib import Path
from statistics import median

import pytest

from vllm_kairos.simulate.experiments.governor import OURS

RESULTS = Path(__file__).parents[2] / "benchmarks/results/sim"
COMMANDS = {
    "governor": "kairos simulate --experiment governor",
    "governor-ttft": "kairos simulate --experiment governor --governor-ttft-slo-ms 4000 --policy aggregated",
}


def attained(name):
    """By load, rate and policy."""
    figures = json.loads((RESULTS / f"{name}.json").read_text())["figures"]
    return {(load, one["rate_rps"], one["policy"]): median(one["slo_attainment"]) for load in figures for one in figures[load]}


def best_goodput(shares, load, *, ours):
    return max(rate * share for (at, rate, policy), share in shares.items() if at == load and (policy == OURS) is ours)


@pytest.mark.parametrize("name", COMMANDS)
def test_results_name_their_command(name):
    assert json.loads((RESULTS / f"{name}.json").read_text())["command"] == COMMANDS[name]


def test_with_a_ttft_objective_no_load_loses_goodput_to_the_best_fixed_chunk():
    fixed, ours = attained("governor"), attained("governor-ttft")
    for load in {load for load, _, _ in fixed}:
        assert best_goodput(ours, load, ours=True) >= best_goodput(fixed, load, ours=False)


def test_nothing_is_lost_where_a_fixed_chunk_attains_most():
    shares = attained("governor")
    kept_up = [(key, share) for key, share in shares.items() if key[2] != OURS and share >= 0.9]
    assert len(kept_up) > 40
    assert all(shares[load, rate, OURS] >= share for (load, rate, _), share in kept_up)


def test_all_losses_are_in_overload():
    shares = attained("governor")
    lost = [key for key in shares if shares[key] > shares[key[0], key[1], OURS]]
    assert len({key[:2] for key in lost}) == 4
    assert max(shares[key] for key in lost) < 0.83
