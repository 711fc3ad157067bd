"""`kairos simulate` from its flags to its files."""

import json

import pytest

from tests.simulate.runs import SMALL_LOAD
from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.command import COMMAND

GRID = (*SMALL_LOAD, "--policy", "never", "--policy", "kairos", "--rates", "2,4", "--seeds", "0,1")


def simulate(out, *flags):
    arguments = COMMAND.make_parser("kairos simulate").parse_args([*flags, "--out", str(out)])
    return COMMAND.run(arguments)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("simulation")
    assert simulate(folder, *GRID, "--workers", "1", "--requests-csv") == 0
    return folder


def test_it_writes_everything(out):
    names = {"results.json", "timing.json", "summary.csv", "requests.csv", "report.html"}
    assert {path.name for path in out.iterdir()} == names | {"rates.png", "breakdown.png", "errors.png"}
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in ("rates.png", "breakdown.png", "errors.png"))


def test_results_are_the_whole_grid_with_what_made_it(out):
    document = json.loads((out / "results.json").read_text())
    places = [(one["seed"], one["rate_rps"], one["policy"]) for one in document["results"]]
    assert places == [(seed, rate, policy) for seed in (0, 1) for rate in (2.0, 4.0) for policy in ("never", "kairos")]
    assert document["command"].startswith("kairos simulate --workload Bursty")
    assert "--out" not in document["command"]
    assert document["config"]["sweep"]["rates"] == [2.0, 4.0]
    assert document["workload"]["beside_paper"]
    assert document["environment"]["profiles"]["decode"]["model"] == "meta-llama/Meta-Llama-3-8B"


def test_the_same_input_gives_the_same_bytes_with_any_number_of_processes(out, tmp_path):
    simulate(tmp_path, *GRID, "--workers=2", "--requests-csv", "--no-plots")
    for name in ("results.json", "summary.csv", "requests.csv"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


def test_the_page_needs_no_other_file(out):
    page = (out / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert 'src="http' not in page
    assert "Simulation of 1P1D under Bursty" in page


def test_the_table_and_the_achieved_quantiles_are_shown(tmp_path, capsys):
    simulate(tmp_path, *SMALL_LOAD, "--workers", "1", "--no-plots")
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(("never", "kairos"))] == [
        ["never", "own"],
        ["kairos", "own"],
    ]
    assert "prompt_tokens p90: " in shown
    assert "the paper 10,336" in shown
    assert not (tmp_path / "rates.png").exists()


def test_use_beyond_the_profile_is_marked(tmp_path, capsys):
    trace = tmp_path / "long.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,30000,4\n2023-11-16 18:15:47.0,100,4\n")
    simulate(tmp_path, "--trace", str(trace), "--workers", "1", "--policy", "kairos", "--no-plots")
    assert "Beyond the profile: up to 50.0% of the decisions" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert '<tr class="mark">' in page
    assert "Beyond the profile" in page


def test_names_in_the_page_are_escaped(tmp_path):
    trace = tmp_path / "<b>.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.0,300,4\n2023-11-16 18:15:47.0,100,4\n")
    simulate(tmp_path, "--trace", str(trace), "--workers", "1", "--no-plots")
    assert "<b>" not in (tmp_path / "report.html").read_text()


def test_a_folder_that_cannot_be_written_is_found_before_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out must be a directory that can be made"):
        simulate(tmp_path / "file", *SMALL_LOAD)
    with pytest.raises(ConfigError, match="--out must be a"):
        simulate("/proc/nowhere", *SMALL_LOAD)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--workers", "0"), "--workers must be >= 1, got 0"),
        (("--experiment", "nope"), "--experiment must be one of rising-load"),
        (("--wrong",), "--wrong: no such flag"),
        (("--requests", "few"), "--requests must be a whole number, got 'few'"),
    ],
)
def test_faulty_flags_are_refused(tmp_path, flags, message):
    with pytest.raises(ConfigError) as caught:
        simulate(tmp_path, *SMALL_LOAD, *flags)
    assert message in str(caught.value)
