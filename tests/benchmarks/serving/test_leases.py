"""What is derived of leases."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.contenders import of_name
from benchmarks.serving.leases import MOST_SHARE, leases_of
from benchmarks.serving.record import flat
from benchmarks.serving.setting import Setting
from benchmarks.serving.simulated import simulate
from benchmarks.serving.tables import lease_tables
from tests.benchmarks.serving.cells import broken, row
from vllm_kairos.errors import ConfigError

COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=4)


def _cell(contender, rate_rps, repeat=0, *, deflected=0.0, **figures):
    counted = {"engine_gaps": 1000.0, "violations_deflected": deflected, "violations_decode": 3.0}
    counted |= {"ttft_mean_s": 0.5, "deflected_share": 0.3}
    return row(contender, rate_rps, repeat, **(counted | figures))


def test_without_leases_nothing_is_derived_of_them():
    assert leases_of([_cell("never", 6.0), _cell("kairos", 6.0), _cell("kairos-two-routers", 6.0)]) is None


def test_ratios_are_of_leases_over_the_others_at_each_rate():
    rows = [_cell("never", 6.0, ttft_p95_s=4.0, ttft_mean_s=1.0), _cell("kairos", 6.0, ttft_p95_s=2.0)]
    rows += [_cell("crossflow", 6.0, output_tokens_per_s=120.0), _cell("crossflow", 5.0)]
    found = leases_of(rows)
    at_five, at_six = found["by_rate"]
    assert (at_six["p95_ttft_over_never"], at_six["p95_ttft_over_kairos"]) == (0.25, 0.5)
    assert (at_six["output_tokens_over_never"], at_six["mean_ttft_over_never"]) == (1.2, 0.5)
    assert at_five["p95_ttft_over_never"] is None
    assert found["output_tokens_over_never_geometric_mean"] == pytest.approx(1.2)
    assert found["mean_ttft_lower_everywhere"] is True


@settings(max_examples=30)
@given(COUNTS)
def test_two_routers_are_within_the_limit_if_every_repeat_is(counts):
    rows = [_cell("crossflow-two-routers", 12.0, at, deflected=float(count)) for at, count in enumerate(counts)]
    found = leases_of([*rows, _cell("crossflow", 6.0)])
    (two,) = found["two_routers"]
    assert two["deflected_share"]["most"] == max(counts) / 1000
    assert two["within_limit"] == found["two_routers_within_limit"] == (max(counts) <= MOST_SHARE * 1000)
    assert two["is_twice_the_load_of_one"]
    assert two["all_causes_share"]["most"] == pytest.approx(two["deflected_share"]["most"] + 0.003)
    assert two["within_limit"] or not two["all_causes_within_limit"]


def test_two_routers_stand_beside_one_at_the_same_load():
    rows = [_cell("crossflow-two-routers", 8.0, ttft_p95_s=3.0), _cell("crossflow", 8.0, ttft_p95_s=2.0)]
    (two,) = leases_of(rows)["two_routers"]
    assert (two["p95_ttft_over_one_router"], two["is_twice_the_load_of_one"]) == (1.5, False)


def test_late_tokens_are_shares_of_all_gaps_by_cause():
    rows = [_cell("crossflow", 6.0, deflected=5.0, lease_admissions=9.0, lease_refusals=1.0)]
    (engines,) = leases_of(rows)["engines"]
    assert engines["violation_shares"]["deflected"]["median"] == 0.005
    assert engines["violation_share"]["median"] == 0.008
    assert engines["refused_share"]["median"] == 0.1


def test_where_engines_count_nothing_nothing_is_said():
    found = leases_of([row("crossflow-two-routers", 12.0, engine_gaps=0.0), flat(broken("crossflow", 6.0))])
    assert found["two_routers_within_limit"] is None
    assert found["engines"][0]["violation_share"] is None
    assert found["by_rate"] == []
    assert all(table.headings for table in lease_tables(found))


def test_two_routers_that_deflected_nothing_prove_nothing():
    found = leases_of([_cell("crossflow-two-routers", 12.0, deflected_share=0.0)])
    assert found["two_routers"][0]["within_limit"] is found["two_routers_within_limit"] is None


def test_the_page_marks_what_is_over_the_limit():
    rows = [_cell("crossflow-two-routers", rate, deflected=count) for rate, count in ((8.0, 5.0), (12.0, 6.0))]
    over, two, causes = lease_tables(leases_of([*rows, _cell("crossflow", 6.0, lease_admissions=4.0)]))
    assert [line[0] for line in over.rows] == ["6"]
    assert [line[4] for line in two.rows] == ["0.50 (0.50)", "0.60 (0.60)"]
    assert two.marked == frozenset({1})
    assert causes.headings[2:] == ["decode", "deflected", "all causes", "refused leases, %"]


def test_the_setting_is_the_papers_on_nodes_that_grant_leases():
    paper, leased = Setting.read("paper"), Setting.read("crossflow")
    assert leased.cluster == {**paper.cluster, "engine": {**paper.cluster["engine"], "leases": True}}
    assert (leased.load, leased.router_args) == (paper.load, paper.router_args)
    assert sum(rate / 2 in leased.rates_rps for rate in leased.rates_rps) == 3


def test_one_router_with_leases_has_a_twin_and_two_have_none():
    raw = {"title": "small", "cluster": {"emulate": "a100-llama3-8b"}, "load": {"workload": "LPLD"}, "rates_rps": [4.0]}
    setting = Setting.of("small.yaml", raw | {"duration_s": 5.0})
    assert simulate(setting, None, of_name("crossflow"), 4.0, 0).requests == 20
    with pytest.raises(ConfigError, match="one router to be simulated"):
        simulate(setting, None, of_name("crossflow-two-routers"), 4.0, 0)
