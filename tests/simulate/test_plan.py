"""The search finds the cheapest size that suffices, without trying all of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate.runs import SMALL_LOAD, cell
from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.plan_command import COMMAND
from vllm_kairos.simulate.plan_judge import Trial, most_misses, run_trial, to_the_end
from vllm_kairos.simulate.plan_search import PlanConfig, all_points, search

POLICIES = ("never", "kairos", "aggregated")


class Needs:
    """Good from some strength on, which grows with every node; remembers what it was asked."""

    def __init__(self, prefill_weight, decode_weight, least):
        self.weights, self.least, self.asked = (prefill_weight, decode_weight), least, []

    def good(self, point):
        prefill_weight, decode_weight = self.weights
        return prefill_weight * point.prefill + decode_weight * point.decode >= self.least[point.policy]

    def judge(self, points):
        self.asked += points
        return [self.good(point) for point in points]


@given(
    st.floats(0.1, 3),
    st.floats(0.1, 3),
    st.fixed_dictionaries({policy: st.floats(0, 20) for policy in POLICIES}),
    st.floats(0.2, 5),
    st.floats(0.2, 5),
)
def test_bisection_finds_what_the_grid_finds(prefill_weight, decode_weight, least, prefill_cost, decode_cost):
    needs, sizes = Needs(prefill_weight, decode_weight, least), {"max_nodes": 9, "prefill_cost": prefill_cost}
    plan, grid = (PlanConfig(**sizes, decode_cost=decode_cost, search=how) for how in ("bisect", "grid"))
    found, best = search(POLICIES, plan, needs.judge), search(POLICIES, grid, Needs(*needs.weights, least).judge)
    if best is None:
        assert found is None
        return
    assert needs.good(found)
    assert found.cost(plan) == pytest.approx(best.cost(plan))
    assert len(set(needs.asked)) == len(needs.asked) < sum(len(list(all_points(policy, plan))) for policy in POLICIES)


def test_never_needs_a_prefill_node_and_aggregated_has_none():
    plan = PlanConfig(max_nodes=3)
    assert [point.nodes for point in all_points("never", plan)] == ["1P1D", "2P1D", "1P2D"]
    assert [point.nodes for point in all_points("kairos", plan)] == ["1D", "1P1D", "2P1D", "2D", "1P2D", "3D"]
    assert [point.nodes for point in all_points("aggregated", plan)] == ["1B", "2B", "3B"]


def test_how_many_may_miss():
    assert [most_misses(100, share) for share in (0.99, 1.0, 0.0)] == [1, 0, 100]
    assert most_misses(1000, 0.9) == 100


def test_a_hopeless_run_is_given_up_and_can_be_finished():
    trial = Trial(cell=cell("--ttft-slo-ms", "1", policy="never"), attainment=0.9)
    short, whole = run_trial(trial, lambda more: None), run_trial(to_the_end(trial), lambda more: None)
    assert short.figures is None
    assert short.ended == short.misses == 5
    assert short.attainment < 0.9
    assert whole.figures.slo_attainment == whole.attainment == 0
    assert not whole.is_good(PlanConfig())


def test_tbt_violations_can_be_bounded():
    whole = run_trial(Trial(cell=cell("--tbt-slo-ms", "14", policy="never"), attainment=0.0), lambda more: None)
    share = whole.figures.tbt_s.violation_share
    assert 0 < share < 1
    assert whole.is_good(PlanConfig(attainment=0.0, tbt_violations=share))
    assert not whole.is_good(PlanConfig(attainment=0.0, tbt_violations=share / 2))


def run_plan(out, *flags):
    arguments = COMMAND.make_parser("kairos plan").parse_args([*SMALL_LOAD, "--workers", "1", "--out", str(out), *flags])
    return COMMAND.run(arguments), json.loads((out / "plan.json").read_text())


def test_the_command_answers(tmp_path, capsys):
    status, plan = run_plan(tmp_path, "--rates", "4", "--max-nodes", "4", "--attainment", "0.9")
    assert status == 0
    assert plan["answer"]["slo_attainment"] >= 0.9
    assert plan["answer"]["cost"] == min(one["cost"] for one in plan["tried"] if one["good"])
    shown = capsys.readouterr().out
    assert f"{plan['answer']['nodes']} under {plan['answer']['policy']}" in shown
    assert shown.startswith("workload Bursty: 40 requests")
    assert "Nodes for Bursty" in (tmp_path / "plan.html").read_text()


def test_the_command_says_what_came_closest(tmp_path, capsys):
    status, plan = run_plan(tmp_path, "--rates", "30", "--max-nodes", "2")
    assert status == 1
    assert plan["answer"] is None
    assert plan["closest"]["complete"]
    assert "comes closest" in capsys.readouterr().out


FAULTS = {
    "--attainment 2": "attainment must be in [0, 1], got 2.0",
    "--max-nodes 0": "max_nodes must be in [1, 1000], got 0",
    "--prefill-cost 0": "prefill_cost must be a finite number > 0, got 0.0",
    "--search random": "search must be one of bisect, grid, got 'random'",
    "--rates 1,2": "rates must be at most one for a plan, got [1.0, 2.0]",
    "--rack p0=a": "racks must be left out of a plan",
    "--governor-tpot-slo-ms 20": "governor: tpot_slo_ms must be left out where no mode turns the governor on, got 20.0",
    "--leases-ttl-s 1": "leases: ttl_s must be left out where no policy spends leases",
    "--cluster 1P1D": "--cluster: no such flag",
    "--workers 0": "--workers must be >= 1, got 0",
}


@pytest.mark.parametrize("flags", FAULTS)
def test_a_faulty_plan_is_refused(tmp_path, flags):
    with pytest.raises(ConfigError) as caught:
        run_plan(tmp_path, *flags.split())
    assert FAULTS[flags] in str(caught.value)
