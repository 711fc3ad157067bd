"""Options are refused in one line before anything starts; the environment the caller set is kept."""

import io
import os
from pathlib import Path

import pytest

from vllm_kairos.errors import ConfigError
from vllm_kairos.profiler.command import COMMAND, measuring_options
from vllm_kairos.profiler.options import ProfileOptions, check_output, engine_environment
from vllm_kairos.profiler.progress import progress_display
from vllm_kairos.profiler.runner import SweepProgress


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "/no/such/model"}, "--model must be an existing folder or a hub name, got '/no/such/model'"),
        ({"model": "./absent"}, "--model must be an existing folder or a hub name, got './absent'"),
        ({"time_budget_s": 0.0}, r"--time-budget-s must be a finite number > 0, got 0\.0"),
        ({"time_budget_s": float("nan")}, "--time-budget-s must be a finite number > 0, got nan"),
        ({"max_num_seqs": -1}, "--max-num-seqs must be a finite number > 0, got -1"),
        ({"chunk_candidates": (64, 0)}, r"--chunk-candidates must be integers >= 1, got \[64, 0\]"),
        ({"cpus": "a"}, "--cpus must look like 0-3,6, got 'a'"),
        ({"cpus": "\u00b2"}, "--cpus must look like 0-3,6, got '\u00b2'"),
        ({"cpus": "0-9999999999"}, "--cpus must look like 0-3,6, got '0-9999999999'"),
        ({"cpus": "99999"}, r"--cpus must be among the usable CPUs \[.*\], got '99999'"),
        ({"cpus": "3-1"}, r"--cpus must be among the usable CPUs \[.*\], got '3-1'"),
    ],
)
def test_a_bad_option_is_named_with_its_rule_and_value(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ProfileOptions(**{"model": "org/model"} | changes)  # type: ignore[arg-type]


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--model must be a folder with a config\.json, got "):
        ProfileOptions(model=str(tmp_path))


def test_an_output_that_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--out must lie in an existing folder, got '.*absent/profile\.json'"):
        check_output(tmp_path / "absent" / "profile.json")
    with pytest.raises(ConfigError, match="--out must be a file, got the folder"):
        check_output(tmp_path)
    check_output(tmp_path / "profile.json")


def test_the_command_line_becomes_options_and_vllm_flags(model: Path) -> None:
    line = [
        "--model",
        str(model),
        "--out",
        "p.json",
        "--max-num-seqs",
        "16",
        "--chunk-candidates",
        "256,64",
        "--",
        "--enforce-eager",
    ]
    arguments = COMMAND.make_parser("kairos profile").parse_args(line)
    options = measuring_options(arguments)
    assert options.chunk_candidates == (256, 64)
    assert options.engine_argv() == ("--model", str(model), "--dtype", "auto", "--max-num-seqs", "16", "--enforce-eager")


def test_a_run_is_refused_before_the_engine_starts(model: Path, tmp_path: Path) -> None:
    arguments = COMMAND.make_parser("kairos profile").parse_args(["--model", str(model), "--out", str(tmp_path)])
    with pytest.raises(ConfigError, match="--out must be a file"):
        COMMAND.run(arguments)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "--model is required unless --from-log is given"),
        (["--model", "org/model", "--like", "x"], "--like does nothing without --from-log"),
        (["--from-log", "x", "--quick"], "--quick does nothing with --from-log"),
        (["--from-log", "x", "--dtype", "bfloat16"], "--dtype does nothing with --from-log"),
        (
            ["--from-log", "x", "--chunk-candidates", "64", "128"],
            "--chunk-candidates must be numbers with commas between, as in 64,128, got '64 128'",
        ),
        (["--model", "org/model", "--chunk-candidates", "64,128", "256"], "as in 64,128, got '64,128 256'"),
        (["--from-log", "x", "--", "--enforce-eager"], "-- VLLM_ARGS does nothing with --from-log"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: list[str], said: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "p.json")]
    with pytest.raises(ConfigError, match=said):
        COMMAND.run(COMMAND.make_parser("kairos profile").parse_args([*out, *line]))


@pytest.mark.parametrize(("quick", "budget_s"), [(True, 150.0), (False, 900.0)])
def test_the_default_time_budget_keeps_a_quick_run_under_three_minutes(quick: bool, budget_s: float) -> None:
    assert ProfileOptions(model="org/model", quick=quick).budget_s == budget_s
    assert ProfileOptions(model="org/model", quick=quick, time_budget_s=30).budget_s == 30


def test_the_engine_runs_in_process_and_pinned_as_served(model: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    changed = engine_environment(ProfileOptions(model=str(model), cpus=str(cpu)), {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    assert changed["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert (changed["OMP_NUM_THREADS"], changed["VLLM_CPU_OMP_THREADS_BIND"]) == ("1", "nobind")
    assert changed["HF_HUB_OFFLINE"] == "1"


def test_variables_the_caller_set_stay(model: Path) -> None:
    options = ProfileOptions(model=str(model))
    changed = engine_environment(options, {"VLLM_CPU_KVCACHE_SPACE": "4", "OMP_NUM_THREADS": "8"})
    assert not changed.keys() & {"VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS"}
    explicit = engine_environment(ProfileOptions(model=str(model), kv_cache_gib=2), {"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert explicit["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_progress_off_a_terminal_is_a_few_plain_lines() -> None:
    stream, now_s = io.StringIO(), [0.0]
    with progress_display(stream, 150, lambda: now_s[0]) as show:
        for step in range(1, 101):
            now_s[0] = step * 0.4
            show(SweepProgress(step, 100, 1))
    lines = stream.getvalue().splitlines()
    assert 4 <= len(lines) <= 6
    assert lines[-1] == "kairos profile: 100/100 steps, pass 1, 40 of 150 s"


def test_progress_on_a_terminal_is_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress_display(stream, 150, lambda: 12.0) as show:
        show(SweepProgress(50, 100, 2))
    assert "50/100 steps, pass 2, 12 of 150 s" in stream.getvalue()
