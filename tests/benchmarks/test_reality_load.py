"""Both sides get the same requests, and their figures are compared as the bounds say."""

from pathlib import Path

import pytest

from benchmarks.sim.comparison import figures, medians, relative_errors, rounded, verdicts
from benchmarks.sim.load import SLICE_FILE, at_load, by_length, mean_prompt_s, planned, read_rows
from benchmarks.sim.reality import cell, parse
from tests.benchmarks.test_reality_calibration import MODEL
from vllm_kairos.errors import WorkloadError


def test_the_slice_holds_recorded_arrivals_and_scaled_lengths() -> None:
    slice_ = read_rows(SLICE_FILE, 0, 160)
    first, second = slice_.requests[:2]
    assert (first.arrival_s, first.prompt_tokens, first.output_tokens) == (0.0, round(1556 * 0.3), round(21 * 0.5))
    assert second.arrival_s == pytest.approx(0.016861)
    assert max(request.prompt_tokens for request in slice_.requests) <= 2048


def test_rows_beyond_the_trace_are_refused() -> None:
    with pytest.raises(WorkloadError, match=r"requests must be >= 250, got 240"):
        read_rows(SLICE_FILE, 160, 90)


def test_a_load_of_one_keeps_a_prefill_node_just_busy() -> None:
    slice_ = read_rows(SLICE_FILE, 0, 100)
    span_s = at_load(slice_, 1.0, MODEL).requests[-1].arrival_s
    assert span_s == pytest.approx(99 * mean_prompt_s(slice_, MODEL))
    assert at_load(slice_, 0.5, MODEL).requests[-1].arrival_s == pytest.approx(2 * span_s)


def test_the_client_gets_the_simulator_s_requests_with_new_tokens_each_run() -> None:
    slice_ = read_rows(SLICE_FILE, 0, 20)
    sent, again = planned(slice_.requests, "a"), planned(slice_.requests, "b")
    assert [(one.at_s, len(one.prompt), one.output_tokens) for one in sent] == [
        (one.arrival_s, one.prompt_tokens, one.output_tokens) for one in slice_.requests
    ]
    assert all(one.prompt != other.prompt for one, other in zip(sent, again, strict=True))


def test_requests_one_by_one_span_the_lengths_and_have_no_two_alike() -> None:
    slice_ = read_rows(SLICE_FILE, 0, 160)
    chosen = [request.prompt_tokens for request in by_length(slice_, 16).requests]
    assert len(chosen) == 16
    assert min(chosen) < 100 < 1000 < max(chosen)
    assert chosen != sorted(chosen)


def test_errors_are_relative_to_the_real_side() -> None:
    real = figures([1.0, 2.0, 3.0], [0.1], deflected=0, duration_s=1.0)
    simulated = figures([1.0, 2.2, 3.0], [0.1], deflected=1, duration_s=1.0)
    errors = relative_errors(simulated, real)
    assert errors["ttft_p50_s"] == pytest.approx(0.1)
    assert verdicts(errors) == {"ttft_p50_s": True, "ttft_p95_s": True, "deflected": False}


def test_a_cell_compares_medians_of_both_sides() -> None:
    runs = [figures([value], [0.1], deflected=5, duration_s=1.0) for value in (1.0, 2.0, 9.0)]
    found = cell(runs, runs[1:2])
    assert medians(runs).ttft_p50_s == found["real"]["ttft_p50_s"] == 2.0
    assert all(found["within_bounds"].values())
    assert len(found["real_runs"]) == 3


def test_json_numbers_are_rounded_throughout() -> None:
    assert rounded({"a": [1.23456789, (2, "x")]}) == {"a": [1.234568, [2, "x"]]}


def test_the_default_run_needs_no_file_but_the_repository_s_own() -> None:
    args = parse([])
    assert args.trace == SLICE_FILE
    assert Path(args.trace).is_file()
    assert (args.repeats, args.loads, args.requests) == (3, [0.5, 0.8, 1.0], 160)
