"""What is written of cells, whatever became of them."""

import csv
import json
from dataclasses import replace

import pytest

from benchmarks.serving.against_simulator import grouped, pair, pairs_of, setting_in, table
from benchmarks.serving.compare import left_to_run, main, parse, setting_of
from benchmarks.serving.contenders import of_name
from benchmarks.serving.record import flat, load_all, load_summary, save
from benchmarks.serving.report import one_line, write_report
from benchmarks.serving.setting import Setting, workload_of
from benchmarks.serving.simulated import simulate
from tests.benchmarks.serving.cells import broken, record
from vllm_kairos.errors import ConfigError


def _records():
    several = [record(name, rate, at) for name in ("never", "kairos") for rate in (6.0, 7.0) for at in range(2)]
    return [*several, broken("always", 6.0), record("never", 12.0, ttft_s=30.0)]


def test_all_files_are_written(tmp_path):
    write_report(tmp_path, Setting.read("paper"), _records(), "the command")
    assert {path.name for path in tmp_path.iterdir()} >= {"comparison.json", "cells.csv", "report.html", "rates.png"}
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert document["derived"]["knee_rps"] == 12.0
    assert document["derived"]["sustained_rps"]["kairos"]["all_attain"] == 7.0
    assert len(document["cells"]) == len(_records())
    page = (tmp_path / "report.html").read_text()
    assert "it broke" in page
    assert "violations_deflected" in document["cells"][0]
    with (tmp_path / "cells.csv").open() as lines:
        assert len(list(csv.DictReader(lines))) == len(_records())


def test_pictures_of_an_earlier_report_go(tmp_path):
    write_report(tmp_path, Setting.read("paper"), _records(), "the command")
    assert len(list(tmp_path.glob("*.png"))) == 2
    write_report(tmp_path, Setting.read("paper"), [], "the command")
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("text", ["", '{"schema": 1', "[]", '{"status": "ok"}', "[" * 100_000, "\x00", '{"status": 5}'])
def test_a_file_that_is_no_cell_is_named(tmp_path, text):
    (tmp_path / "cells").mkdir()
    (tmp_path / "cells/r0-6-never.json").write_text(text)
    flags = ["--contenders", "never", "--rates", "6", "--repeats", "1", "--out", str(tmp_path)]
    for more in (["--resume"], ["--resume", "--retry-failed"]):
        args = parse([*flags, *more])
        with pytest.raises(ConfigError, match=r"r0-6-never\.json: must be a cell's record"):
            left_to_run(args, setting_of(args))
    assert main([*flags, "--report-only"]) == 2


def test_a_duration_that_is_given_goes_before_a_settings_own_count():
    counted = setting_of(parse(["--setting", "llama-azure-code"]))
    timed = setting_of(parse(["--setting", "llama-azure-code", "--duration-s", "20"]))
    assert (counted.requests_at(4.0), timed.requests_at(4.0), timed.requests_at(6.0)) == (240, 80, 120)


def test_cells_beside_the_sweep_must_be_of_its_load_too(tmp_path):
    (tmp_path / "cells").mkdir()
    setting = setting_of(parse([]))
    cell = record("kairos", 7.0) | {"load": load_summary(workload_of(setting, None, 7.0, 0))}
    save(cell, tmp_path / "cells/r0-7-kairos.json")
    flags = ["--contenders", "never", "--rates", "6", "--repeats", "1", "--out", str(tmp_path)]
    args = parse(flags)
    assert [key.file_name for key in left_to_run(args, setting_of(args))] == ["r0-6-never.json"]
    with pytest.raises(ConfigError, match="kairos at 7 requests/s, repeat 0: its requests must be those of the setting"):
        left_to_run(args, replace(setting_of(args), duration_s=20.0))
    assert main([*flags, "--duration-s", "20", "--report-only"]) == 2


@pytest.mark.parametrize("names", [["kairos:always", "kairos-always"], []])
def test_contenders_are_of_different_files_and_at_least_one(tmp_path, capsys, names):
    setting = tmp_path / "small.yaml"
    setting.write_text(json.dumps(SMALL | {"contenders": names}))
    assert main(["--setting", str(setting), "--plan-only", "--out", str(tmp_path / "out")]) == 2
    assert "contender" in capsys.readouterr().err


def test_a_sweep_of_failures_alone_has_a_report(tmp_path):
    write_report(tmp_path, Setting.read("paper"), [broken("never", 6.0)], "the command")
    assert "it broke" in (tmp_path / "report.html").read_text()


def test_lines_for_a_person():
    assert "attained 100.0%" in one_line(flat(record("kairos", 6.0)))
    assert "failed: it broke" in one_line(flat(broken("kairos", 6.0)))


def test_cells_are_kept_and_left_out_when_resuming(tmp_path):
    cells = tmp_path / "cells"
    cells.mkdir()
    flags = ["--contenders", "never", "kairos", "--rates", "6", "--repeats", "1", "--out", str(tmp_path)]
    args = parse(flags)
    first, second = left_to_run(args, setting_of(args))
    save(record(first.contender, 6.0), cells / first.file_name)
    save(broken(second.contender, 6.0), cells / second.file_name)
    assert len(load_all(cells)) == 2
    with pytest.raises(ConfigError, match="--resume"):
        left_to_run(args, setting_of(args))
    assert left_to_run(parse([*flags, "--resume"]), setting_of(args)) == []
    assert left_to_run(parse([*flags, "--resume", "--retry-failed"]), setting_of(args)) == [second]


def test_cells_of_other_requests_are_not_resumed(tmp_path):
    (tmp_path / "cells").mkdir()
    flags = ["--contenders", "never", "--rates", "6", "--repeats", "1", "--out", str(tmp_path), "--resume"]
    setting = setting_of(parse(flags))
    cell = record("never", 6.0) | {"load": load_summary(workload_of(setting, None, 6.0, 0))}
    save(cell, tmp_path / "cells/r0-6-never.json")
    assert left_to_run(parse(flags), setting) == []
    with pytest.raises(ConfigError, match="got others"):
        left_to_run(parse(flags), replace(setting, duration_s=20.0))


def test_plan_only_runs_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["--contenders", "never", "kairos", "--plan-only", "--out", str(out)]) == 0
    assert "70 cells, about 63 minutes" in capsys.readouterr().err
    assert not out.exists()


def test_bad_input_is_one_line(tmp_path, capsys):
    assert main(["--contenders", "nobody", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("compare: contender must be one of")


SMALL = {"title": "small", "cluster": {"emulate": "a100-llama3-8b"}, "load": {"workload": "LPLD"}, "rates_rps": [4.0]}


def test_a_cell_is_set_beside_its_twin():
    setting = Setting.of("small.yaml", SMALL | {"duration_s": 5.0})
    twin = simulate(setting, None, of_name("never"), 4.0, 0)
    one = pair(flat(record("never", 4.0, ttft_s=twin.ttft_s.p50)), twin)
    assert one["ratios"]["ttft_p50_s"] == pytest.approx(1.0)
    (group,) = grouped([one, one])
    assert group["within_limits"]["ttft_p50_s"]
    assert "never" in table([group])[1]


def test_a_comparison_says_what_it_was_run_with(tmp_path):
    setting = Setting.of("small.yaml", SMALL | {"duration_s": 5.0})
    write_report(tmp_path, setting, [record("never", 4.0)], "the command")
    assert setting_in(tmp_path) == replace(setting, name="small")
    with pytest.raises(ConfigError, match=r"comparison\.json"):
        setting_in(tmp_path / "nowhere")


def test_twins_get_the_cells_own_requests():
    setting = Setting.of("small.yaml", SMALL | {"duration_s": 5.0})
    cell = record("never", 4.0) | {"load": load_summary(workload_of(setting, None, 4.0, 0))}
    assert len(pairs_of(setting, None, [cell], ["never"])) == 1
    with pytest.raises(ConfigError, match="got others"):
        pairs_of(replace(setting, duration_s=6.0), None, [cell], ["never"])
    with pytest.raises(ConfigError, match="got none"):
        pairs_of(setting, None, [], ["never"])
