"""`kairos up` and `kairos demo` refuse bad input in one line, with a status, before anything starts."""

import argparse
from pathlib import Path

import pytest

from vllm_kairos.cli.main import main
from vllm_kairos.cluster import command
from vllm_kairos.cluster.spec import ClusterSpec, Device


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["up", "--config", "/no/such.yaml"], "/no/such.yaml: cannot be read"),
        (["up", "--model", "/no/such/model"], "got '/no/such/model'"),
        (["up", "--prefill", "0"], "prefill must be >= 1 with a router, got 0"),
        (["up", "--profile", "/no/p.json"], "profile must be an existing file, got '/no/p.json'"),
        (["up", "--base-port", "99999"], "base_port must be between 1 and 65535, got 99999"),
        (["up", "--no-router", "--policy", "never"], "policy needs the router"),
        (["up", "--pins", "0"], "pins must name one entry for each of 2 servers, got 1"),
        (["up", "--kv-cache-gib", "9" * 400], "kv_cache_gib must be <= 10000, got 999"),
        (["up", "--decode", "20000"], "decode must be <= 10000, got 20000"),
        (["demo", "--repeats", "0"], "--repeats must be >= 1, got 0"),
        (["demo", "--tbt-slo-ms", "0"], "--tbt-slo-ms must be a finite number > 0, got 0.0"),
        (["demo", "--duration-s", "inf"], "duration_s must be a finite number > 0, got inf"),
        (["demo", "--out", "/dev/null/x"], "--out must be a directory that can be made, got '/dev/null/x'"),
    ],
)
def test_bad_input_is_one_line_and_a_status(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--prefil", "1"],
        ["up", "--device", "tpu"],
        ["up", "--decode", "two"],
        ["demo", "--nope"],
        ["profile", "--out", "x.json"],
        ["decide", "--tokens", "9"],
        ["router", "--no-such-flag"],
    ],
)
def test_a_bad_flag_is_refused_in_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("kairos: ")
    assert "--" in error


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "up.yaml"
    path.write_text("{decode: 3, device: cuda, dtype: half}")
    assert _spec("--config", str(path), "--decode", "2", "--", "--seed", "1") == ClusterSpec(
        decode=2, device=Device.CUDA, dtype="half", vllm_args=("--seed", "1")
    )


def test_router_can_be_left_out() -> None:
    assert not _spec("--no-router").router


def _spec(*words: str) -> ClusterSpec:
    arguments: argparse.Namespace = command.make_parser("kairos up").parse_args(words)
    return command.spec_from(arguments)
