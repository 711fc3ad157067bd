"""The sweep that the simulator alone runs."""

import json
from pathlib import Path

import pytest

from benchmarks.serving.simulated_sweep import main

WORDS = ["--setting", "paper", "--duration-s", "12", "--rates", "8", "--repeats", "2"]


def test_figures_are_derived_as_from_measured_cells(tmp_path: Path) -> None:
    assert main([*WORDS, "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["command"].endswith("--rates 8 --duration-s 12 --out FILE")
    assert len(found["cells"]) == 8
    (rate,) = found["derived"]["by_rate"]
    cuts = rate["p95_ttft_cut_of"]
    assert set(cuts) == {"kairos", "kairos-4-per-node", "kairos:oracle"}
    assert 0.0 < cuts["kairos:oracle"] < 1.0
    deflected = {cell["contender"]: cell["deflected_share"] for cell in found["cells"]}
    assert deflected["never"] == 0.0 < deflected["kairos:oracle"]


@pytest.mark.parametrize("words", [["--repeats", "0"], ["--contenders", "nobody"], ["--setting", "no-such"]])
def test_bad_input_is_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, *words]) == 2
    assert capsys.readouterr().err.startswith("simulated_sweep: ")
