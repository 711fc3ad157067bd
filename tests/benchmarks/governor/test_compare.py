"""What is left to run, what becomes of servers that fail, and the report."""

import csv
import json

import pytest
import yaml

from benchmarks.governor import compare
from benchmarks.governor.plan import runs
from benchmarks.serving.record import failed_cell, load_summary, save
from benchmarks.serving.setting import workload_of
from tests.benchmarks.governor.records import RAW, record
from vllm_kairos.errors import ClusterError, ConfigError


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(RAW | {"cases": {"one": {}, "two": {"tbt_slo_ms": 100.0}}}))
    return ["--setting", str(path), "--out", str(tmp_path / "out")]


def _put(words, status="ok", contenders=("stock", "governor")):
    """Records of some cells."""
    args = compare.parse(words)
    for run in runs(compare.comparison_of(args).cases, args.repeats):
        for place in run.places:
            if run.contender.name in contenders:
                load = load_summary(workload_of(place.case.load, None, place.key.rate_rps, place.key.repeat))
                found = record(run.contender.name, place.key.rate_rps) if status == "ok" else failed_cell(place.key, "it broke")
                place.path(args.out).parent.mkdir(parents=True, exist_ok=True)
                save(found | {"load": load}, place.path(args.out))


def _left(words):
    args = compare.parse(words)
    return [run.contender.name for run in compare.left_to_run(args, compare.comparison_of(args))]


def test_a_folder_with_cells_is_not_written_over(words):
    _put(words)
    with pytest.raises(ConfigError, match="without --resume, got 8"):
        _left(words)


def test_resuming_leaves_out_what_is_done(words):
    _put(words)
    _put(words, "failed", ["fixed-256"])
    assert _left([*words, "--resume"]) == ["governor-x0.7"] * 2
    assert _left([*words, "--resume", "--retry-failed"]) == ["fixed-256", "governor-x0.7"] * 2
    assert _left([*words, "--resume", "--cases", "two"]) == ["governor-x0.7"]


def test_cells_of_another_load_are_refused(words):
    _put(words)
    with pytest.raises(ConfigError, match="its requests must be those of the setting"):
        _left([*words, "--resume", "--duration-s", "5"])


def test_servers_that_do_not_start_cost_their_cells_alone(words, tmp_path, monkeypatch):
    class Broken:
        def __init__(self, spec):
            raise ClusterError("no port")

    monkeypatch.setattr(compare, "LocalCluster", Broken)
    assert compare.main([*words, "--contenders", "stock", "governor-x1.4"]) == 0
    document = json.loads((tmp_path / "out/comparison.json").read_text())
    assert {row["reason"] for row in document["cells"]} == {"ClusterError: no port"}
    assert len(document["cells"]) == 6


def test_the_report(words, tmp_path, capsys):
    _put(words)
    assert compare.main([*words, "--report-only", "--repeats", "1"]) == 0
    out = tmp_path / "out"
    document = json.loads((out / "comparison.json").read_text())
    assert document["command"] == "python -m benchmarks.governor.compare --setting small.yaml --repeats 1 --out DIR"
    assert set(document["derived"]) == {"one", "two"}
    assert document["derived"]["two"]["goodput"]["gain"] == 0.0
    rows = list(csv.DictReader((out / "cells.csv").read_text().splitlines()))
    assert len(rows) == len(document["cells"]) == 8
    assert (rows[0]["case"], rows[0]["contender"], rows[0]["good_rps"]) == ("one", "stock", "1.0")
    assert (out / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert "one 1/s: late stock 0.00%, governor 0.00%" in capsys.readouterr().out


def test_bad_input_is_status_2(words, capsys):
    assert compare.main([*words, "--repeats", "0"]) == 2
    assert compare.main([*words, "--cases", "three"]) == 2
    assert "--cases must be of one, two, got 'three'" in capsys.readouterr().err


def test_the_plan_starts_nothing(words, tmp_path, capsys):
    assert compare.main([*words, "--plan-only"]) == 0
    assert "14 cells, 8 starts of servers" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
