"""Cells become a row per scenario and router, and rows the same table everywhere."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.contenders import CONTENDERS
from benchmarks.serving.failing.front import failure_counters
from benchmarks.serving.failing.report import as_markdown, as_text, summed
from benchmarks.serving.failing.scenarios import SCENARIOS
from benchmarks.serving.failing.steady import steady
from benchmarks.serving.failures import document, expected_minutes, file_of, left_to_run, order, parse
from vllm_kairos.errors import ConfigError


def cell(repeat: int, **changed: Any) -> dict[str, Any]:
    verdicts = {"right": 9, "told": 1, "broken": 0, "lost": 0, "wrong": 0}
    return {
        "scenario": "kill-decode",
        "contender": "kairos",
        "repeat": repeat,
        "requests": 10,
        "verdicts": verdicts,
        "errors": {"error_event": 1},
        "examples": {"error_event": "gone"},
        "under_way": 4,
        "under_way_failed": 1,
        "failed_before": 0,
        "failed_after_return": 0,
        "recovery": {"ttft_before_s": 0.3, "failing_s": 0.0, "slow_s": 1.0 + repeat, "slow_requests": 2},
        "moments_s": {"fault": 8.0, "start": 16.0, "healthy": 19.0, "used": 20.0 + repeat},
        "router_counters": {"kairos_router_retries_total": 2.0, "vllm_router_retries_total": 2.0},
        "machine_load_before": 1.0 + repeat,
    } | changed


def test_counts_are_summed_and_times_are_the_worst() -> None:
    (row,) = summed([cell(0), cell(1), cell(2)])
    assert (row["repeats"], row["requests"], row["right"], row["told"]) == (3, 30, 27, 3)
    assert row["failed_share"] == 0.1 or abs(row["failed_share"] - 0.1) < 1e-9
    assert (row["failing_s"], row["slow_s"], row["used_after_s"]) == (0.0, 3.0, 3.0)
    assert (row["retries"], row["errors"]) == (6.0, {"error_event": 3})


def test_one_repeat_without_recovery_is_none_for_all() -> None:
    never = {"ttft_before_s": 0.3, "failing_s": None, "slow_s": None, "slow_requests": 5}
    (row,) = summed([cell(0), cell(1, recovery=never, moments_s={"fault": 8.0, "start": 16.0, "healthy": 19.0})])
    assert (row["failing_s"], row["slow_s"], row["used_after_s"]) == (None, None, None)
    assert "to the end" in as_text([row])
    assert "| not |" in as_markdown([row])


def test_rows_come_in_the_order_of_scenarios() -> None:
    rows = summed([cell(0, scenario="router-drain"), cell(0), cell(0, contender="another")])
    assert [(row["scenario"], row["contender"]) for row in rows] == [
        ("kill-decode", "another"),
        ("kill-decode", "kairos"),
        ("router-drain", "kairos"),
    ]
    assert len({line.count("|") for line in as_markdown(rows).splitlines()}) == 1


def test_the_summary_names_the_command_without_this_machines_folders() -> None:
    found = document([cell(0), cell(1)], parse(["--vllm-router", "/somewhere/vllm-router", "--repeats", "2"]))
    assert "/somewhere" not in found["command"]
    assert "--vllm-router PATH" in found["command"]
    assert found["machine"]["load_average_before_cells"] == [1.0, 2.0]


def test_routers_take_turns_and_none_is_always_first() -> None:
    contenders = [CONTENDERS["kairos"], CONTENDERS["vllm-router-round-robin"]]
    scenarios = list(SCENARIOS.values())[:2]
    cells = list(order(2, scenarios, contenders))
    assert len(cells) == len(set((repeat, scenario.name, who.name) for repeat, scenario, who in cells)) == 8
    assert [who.name for _, _, who in cells[:3]] == ["kairos", "vllm-router-round-robin", "vllm-router-round-robin"]
    assert {who.name for repeat, scenario, who in cells[::2] if scenario is scenarios[0]} == {one.name for one in contenders}
    assert expected_minutes(cells) > sum(scenario.expected_s for _, scenario, _ in cells) / 60


def test_cells_that_are_there_are_not_run_again(tmp_path: Path) -> None:
    cells = list(order(1, list(SCENARIOS.values()), [CONTENDERS["kairos"]]))
    (tmp_path / "cells").mkdir()
    words = ["--out", str(tmp_path)]
    assert left_to_run(parse(words), cells) == cells
    file_of(tmp_path, cells[1]).write_text(json.dumps(cell(0) | {"rate_rps": 3.0}))
    assert left_to_run(parse([*words, "--resume"]), cells) == [cells[0], *cells[2:]]
    with pytest.raises(ConfigError, match="--resume"):
        left_to_run(parse(words), cells)
    with pytest.raises(ConfigError, match=r"must be of --rate 4, got 3"):
        left_to_run(parse([*words, "--resume", "--rate", "4"]), cells)
    for text in ("{}", "", '{"scenario": '):
        file_of(tmp_path, cells[1]).write_text(text)
        with pytest.raises(ConfigError, match=r"\.json: must be a cell's record"):
            left_to_run(parse([*words, "--resume"]), cells)


def test_a_cell_without_answers_has_a_row_too() -> None:
    nobody = {verdict: 0 for verdict in cell(0)["verdicts"]}
    empty = cell(0, requests=0, verdicts=nobody)
    empty["recovery"] = empty["recovery"] | {"ttft_before_s": None}
    (row,) = summed([empty])
    assert (row["failed_share"], row["ttft_before_s"]) == (None, None)
    assert as_text([row])
    assert as_markdown([row])


def test_scenarios_leave_time_before_and_after_the_failure() -> None:
    for scenario in SCENARIOS.values():
        assert 4 <= scenario.fault_s < scenario.judged_until_s - 4, scenario.name
        assert scenario.judged_until_s <= scenario.expected_s <= scenario.duration_s


def test_the_load_is_even_and_the_same_for_all() -> None:
    first, second = (steady(rate_rps=4.0, duration_s=5.0, seed=1) for _ in range(2))
    assert first == second
    assert [request.arrival_s for request in first.requests][:3] == [0.0, 0.25, 0.5]
    assert len(first.requests) == 20


def test_counters_of_failures_are_summed_over_labels() -> None:
    text = 'x_retries_total{leg="a"} 2\nx_retries_total{leg="b"} 1.0\nx_errors_total 0\nx_requests_total 9\n# HELP x\n'
    assert failure_counters(text) == {"x_retries_total": 3.0}
