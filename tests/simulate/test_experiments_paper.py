"""The paper's experiments: each runs small, and rates are read off curves as it reads them."""

import json

import pytest

from tests.simulate.runs import cell, result_of
from tests.simulate.test_command import simulate
from vllm_kairos.simulate.experiments.paper_setting import figure_config
from vllm_kairos.simulate.experiments.registry import EXPERIMENTS
from vllm_kairos.simulate.experiments.sustained import Criterion, attainment_criterion, crossing_rps, ratio, sustained_rps
from vllm_kairos.simulate.table import Group

PAPER = [name for name in EXPERIMENTS if name.startswith("paper-")]
SIMULATED = [name for name in PAPER if name != "paper-table1"]
TINY = ("--requests", "12", "--seeds", "0", "--rates", "6", "--workers", "1")


def run_tiny(tmp_path, name, *flags):
    assert simulate(tmp_path, "--experiment", name, *TINY, *flags) == 0
    return json.loads((tmp_path / "experiment.json").read_text())


@pytest.mark.parametrize("name", SIMULATED)
def test_it_runs_at_a_tiny_size_and_sets_its_numbers_beside_the_papers(tmp_path, name):
    document = run_tiny(tmp_path, name, "--no-plots")
    assert document["experiment"] == name
    assert any(row["ours"] is not None for row in document["rows"])
    assert set(document["figures"]) == set(document["sweeps"])
    assert (tmp_path / "experiment.md").read_text().startswith(f"# {name}, beside the paper's")
    assert len((tmp_path / "experiment.csv").read_text().splitlines()) == len(document["rows"]) + 1


def test_table_1_needs_no_simulation(tmp_path):
    document = run_tiny(tmp_path, "paper-table1", "--no-plots")
    assert document["figures"] == {}
    assert all(row["expected"] and row["ours"] for row in document["rows"])


def test_a_figure_is_drawn_with_what_the_paper_prints(tmp_path):
    run_tiny(tmp_path, "paper-fig6")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "figure.png" in (tmp_path / "report.html").read_text()


def test_the_same_command_leaves_the_same_bytes(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for out in (one, two):
        run_tiny(out, "paper-fig5", "--no-plots")
    assert (one / "experiment.json").read_bytes() == (two / "experiment.json").read_bytes()


def test_figures_4_to_6_compare_both_baselines():
    assert figure_config().sweep.policies == ("never", "kairos", "taichi")


def curve(*points):
    """Groups of one policy whose criterion, below, has these values."""
    figures = result_of(cell("--requests", "2")).figures
    return [Group("p", rate, ((figures, value),)) for rate, value in points]


STRAIN = Criterion("strain", lambda one: one[1], 1.0)


@pytest.mark.parametrize(
    ("points", "grid", "between"),
    [
        (((6.0, 0.5), (7.0, 0.75), (8.0, 1.25)), 7.0, 7.5),
        (((6.0, 0.5), (7.0, 1.0), (8.0, 2.0)), 7.0, 7.0),  # at the limit is within it
        (((6.0, 1.5), (7.0, 2.0)), None, None),
        (((6.0, 0.5), (7.0, 0.6)), 7.0, None),  # beyond the grid
        (((6.0, 1.5), (7.0, 0.5)), None, None),  # it must hold below, too
        ((), None, None),
    ],
)
def test_a_rate_is_sustained_where_all_below_it_are(points, grid, between):
    groups = curve(*points)
    assert sustained_rps(groups, "p", STRAIN) == grid
    assert crossing_rps(groups, "p", STRAIN) == between
    assert sustained_rps(groups, "another", STRAIN) is None


def test_full_attainment_leaves_no_request_out():
    assert attainment_criterion(1.0).limit == 0
    assert attainment_criterion(0.99).limit == 0.01


def test_a_ratio_needs_both():
    assert ratio(9.0, 6.0) == 1.5
    assert ratio(None, 6.0) is None
    assert ratio(9.0, None) is None
