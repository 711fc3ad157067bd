"""Our own format: what was saved loads back equal."""

import json
import re

import pytest
from hypothesis import given

from tests.workload.files import MOONCAKE, write
from tests.workload.workloads import session, workload_at, workloads
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import generate, load_trace, load_workload, save_workload
from vllm_kairos.workload.transforms import with_slo


@given(workloads())
def test_a_saved_workload_loads_back_equal_to_the_last_bit(tmp_path_factory, workload):
    path = tmp_path_factory.getbasetemp() / "saved.jsonl"
    save_workload(workload, path)
    assert load_workload(path) == workload
    assert load_trace(path) == workload


@pytest.mark.parametrize("name", ["w.jsonl", "w.jsonl.gz"])
def test_equal_workloads_give_equal_bytes(tmp_path, name):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        save_workload(generate("Bursty", requests=50, seed=3), tmp_path / folder / name)
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert load_workload(tmp_path / "b" / name) == generate("Bursty", requests=50, seed=3)


def test_a_trace_saved_and_loaded_is_the_trace(tmp_path):
    trace = load_trace(write(tmp_path, "m.jsonl", MOONCAKE))
    save_workload(trace, tmp_path / "saved.jsonl")
    assert load_trace(tmp_path / "saved.jsonl") == trace
    assert load_trace(tmp_path / "saved.jsonl", limit=2).requests == trace.requests[:2]
    assert load_trace(tmp_path / "saved.jsonl", rate_rps=2.0).duration_s == pytest.approx(1.0)


def test_only_what_differs_from_the_default_is_written(tmp_path):
    save_workload(with_slo(workload_at([0.5]), ttft_slo_s=4.0), tmp_path / "w.jsonl")
    header, row = (json.loads(line) for line in (tmp_path / "w.jsonl").read_text().splitlines())
    assert header == {"kairos_workload": 1, "name": "test", "requests": 1, "warnings": []}
    assert row == {"request_id": "r0", "arrival_s": 0.5, "prompt_tokens": 10, "output_tokens": 5, "ttft_slo_s": 4.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], "row 1: requests must be the number of rows below, 2, got 3"),
        (lambda rows: [rows[0] | {"kairos_workload": 2}, *rows[1:]], "row 1: kairos_workload must be 1, the only schema"),
        (lambda rows: [*rows[:3], rows[3] | {"priority": 1}], "row 4: fields must be of request_id, "),
        (lambda rows: [*rows[:3], rows[3] | {"after": "turn-9"}], "after must name an earlier request, got 'turn-9'"),
        (lambda rows: [*rows[:3], rows[3] | {"request_id": "turn-0"}], "must have an id of its own, and it occurs twice"),
        (lambda rows: [rows[0], rows[1] | {"arrival_s": 9.0}, *rows[2:]], "arrival_s must be >= 9.0, its predecessor's"),
        (lambda rows: [*rows[:3], rows[3] | {"block_hashes": [1]}], "row 4: request 'turn-2': block_tokens must be > 0"),
        (
            lambda rows: [*rows[:3], rows[3] | {"tbt_slo_s": 0}],
            "row 4: request 'turn-2': tbt_slo_s must be a finite number > 0",
        ),
        (lambda rows: [*rows[:3], {"request_id": "x"}], "row 4: arrival_s is missing"),
        (lambda rows: [], "must have at least one row, got an empty file"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, message):
    save_workload(session(), tmp_path / "w.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "w.jsonl").read_text().splitlines()]
    with pytest.raises(WorkloadError, match=re.escape(message)):
        load_workload(write(tmp_path, "w.jsonl", change(rows)))


def test_a_place_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    with pytest.raises(WorkloadError, match="cannot be written"):
        save_workload(session(), tmp_path / "none" / "w.jsonl")
