"""Experiments: every one listed can be set up, and one runs end to end."""

import json
import re
from dataclasses import replace

import pytest

from tests.simulate.test_command import simulate
from vllm_kairos.errors import ConfigError, WorkloadError
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.simulate.build import build_cluster
from vllm_kairos.simulate.experiment_run import configs_of, experiment_rows, run_sweeps
from vllm_kairos.simulate.experiments.experiment import Row
from vllm_kairos.simulate.experiments.registry import EXPERIMENTS
from vllm_kairos.simulate.sweep import check


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_names_clusters_and_policies_that_exist(name):
    for config in configs_of(EXPERIMENTS[name], {}).values():
        cluster = build_cluster(config)
        assert [build_policy(policy, cluster) for policy in config.sweep.policies]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_copes_with_a_grid_that_lacks_its_points(name):
    experiment = EXPERIMENTS[name]
    assert all(isinstance(row, Row) for row in experiment.rows({label: [] for label in experiment.sweeps()}))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_copes_with_policies_that_are_not_its_own(name, tmp_path):
    experiment = EXPERIMENTS[name]
    sweep = {"policies": ("llmd-noncached", "static-length:64"), "seeds": (0,), "rates": (3.0,)}
    configs = configs_of(experiment, {"sweep": sweep, "workload": _few_requests(experiment, tmp_path)})
    rows = experiment_rows(experiment, run_sweeps(configs, workers=1, tell=lambda requests: None))
    assert all(isinstance(row, Row) for row in rows)


def _few_requests(experiment, folder):
    if all(config.workload.trace is None for config in experiment.sweeps().values()):
        return {"requests": 5}
    trace = folder / "trace.csv"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"2023-11-16 18:00:0{at},300,9\n" for at in range(5))
    )
    return {"trace": str(trace), "limit": 5}


def test_leases_are_compared_with_static_pd_and_one_deflection_per_node(tmp_path):
    experiment = EXPERIMENTS["crossflow"]
    configs = configs_of(experiment, {"workload": _few_requests(experiment, tmp_path)})
    few = {label: replace(config, sweep=replace(config.sweep, rates=(50.0,))) for label, config in configs.items()}
    rows = {row.quantity: row for row in experiment_rows(experiment, run_sweeps(few, workers=1, tell=lambda requests: None))}
    lower = rows["points with a mean TTFT below static P/D's"]
    assert (lower.expected, lower.ours) == (6.0, 6.0)
    assert rows["azure-conv-4, 50 requests/s: mean TTFT over static P/D"].ours < 0


def test_settings_given_take_the_place_of_its_own():
    configs = configs_of(EXPERIMENTS["rising-load"], {"sweep": {"seeds": (7,)}, "workload": {"requests": 5}})
    assert [(config.sweep.seeds, config.workload.requests) for config in configs.values()] == [((7,), 5)]
    assert configs["bursty"].workload.generate == "Bursty"


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("governor", {"governor": {"beta": 0.8}}), ("crossflow", {"leases": {"horizon_s": 2.0}, "sweep": {"rates": (1.0,)}})],
)
def test_an_experiment_that_sets_the_mode_or_the_policy_takes_settings_of_that(name, overrides, tmp_path):
    workload = {"workload": _few_requests(EXPERIMENTS[name], tmp_path)}
    assert all(check(config).requests for config in configs_of(EXPERIMENTS[name], overrides | workload).values())


@pytest.mark.parametrize("flags", ["--governor-beta 0.8", "--leases-horizon-s 2"])
def test_an_experiment_without_them_refuses_such_settings(flags, tmp_path):
    with pytest.raises(ConfigError, match="must be left out where no"):
        simulate(tmp_path, "--experiment", "rising-load", "--no-plots", *flags.split())


@pytest.mark.parametrize("name", ["crossflow", "crossflow-64"])
@pytest.mark.parametrize(("folder", "got"), [(None, "nothing"), ("", "nothing"), ("elsewhere", "'elsewhere'")])
def test_an_experiment_without_its_traces_says_how_to_name_their_folder(name, folder, got, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if folder is None:
        monkeypatch.delenv("KAIROS_TRACES", raising=False)
    else:
        monkeypatch.setenv("KAIROS_TRACES", folder)
    path = f"{folder or 'traces'}/azure_2023/AzureLLMInferenceTrace_conv.csv"
    said = f"KAIROS_TRACES must name the folder of public traces that {name!r} reads, got {got}: there is no {path}"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        simulate(tmp_path, "--experiment", name, "--no-plots")


def test_a_trace_given_in_place_of_its_own_needs_no_folder(tmp_path):
    with pytest.raises(WorkloadError, match=r"^none\.csv: cannot be read"):
        simulate(tmp_path, "--experiment", "crossflow", "--no-plots", "--trace", "none.csv")


def test_a_faulty_setting_is_named_with_its_section():
    with pytest.raises(ConfigError, match=r"^governor: tbt_slo_ms must be in 0\.1\.\.3600000 ms, got 0\.05"):
        configs_of(EXPERIMENTS["governor"], {"governor": {"tbt_slo_ms": 0.05}})


def test_it_runs_and_compares(tmp_path, capsys):
    flags = ("--experiment", "rising-load", "--requests", "30", "--seeds", "0", "--rates", "3", "--workers", "1", "--no-plots")
    assert simulate(tmp_path, *flags) == 0
    document = json.loads((tmp_path / "experiment.json").read_text())
    assert [row["quantity"] for row in document["rows"]] == ["P95 TTFT reduction at 3 requests/s"]
    assert (tmp_path / "bursty/results.json").exists()
    assert "P95 TTFT reduction at 3 requests/s, %" in capsys.readouterr().out
    assert "Beside the paper" in (tmp_path / "report.html").read_text()


def test_a_difference_needs_both_numbers():
    assert Row(quantity="q", expected=4.0, ours=5.0).difference == 0.25
    assert Row(quantity="q", expected=None, ours=5.0).difference is None
    assert Row(quantity="q", expected=4.0, ours=None).difference is None
