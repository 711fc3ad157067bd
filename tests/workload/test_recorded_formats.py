"""Formats with recorded arrivals: what their rows become."""

import pytest

from tests.workload.files import AZURE, MOONCAKE, mooncake_row, write
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import load_trace


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_azure_rows_keep_their_hundred_nanoseconds(tmp_path, name, line_end, mark):
    workload = load_trace(write(tmp_path, name, mark + AZURE.replace("\n", line_end)))
    assert [request.arrival_s for request in workload.requests] == [0.0, 4.314579, 4.541877]
    assert [(request.prompt_tokens, request.output_tokens) for request in workload.requests] == [
        (374, 44),
        (396, 109),
        (879, 55),
    ]
    assert [request.request_id for request in workload.requests] == ["row-2", "row-3", "row-4"]
    assert (workload.name, workload.warnings) == ("trace", ())


def test_azure_times_may_carry_a_zone_and_fewer_digits(tmp_path):
    rows = "2024-05-10 00:00:00.5+00:00,1,1\n2024-05-10 01:00:01+01:00,1,1\n"
    workload = load_trace(write(tmp_path, "t.csv", f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"))
    assert workload.requests[1].arrival_s == 0.5


def test_mooncake_rows_are_milliseconds_with_shared_prefixes(tmp_path):
    workload = load_trace(write(tmp_path, "m.jsonl.gz", MOONCAKE))
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.0, 3.0]
    assert [request.prompt_tokens for request in workload.requests] == [6758, 7322, 7236]
    assert [request.block_hashes[:2] for request in workload.requests] == [(0, 1), (0, 14), (0, 28)]
    assert {request.block_tokens for request in workload.requests} == {512}
    assert workload.warnings == ()


def test_rows_with_arrivals_in_seconds(tmp_path):
    text = (
        "arrived_at,client_id,num_prefill_tokens,num_decode_tokens,reason_ratio\n0.25,35,544,457,0.768\n1.5,17,635,1439,0.842\n"
    )
    first, second = load_trace(write(tmp_path, "s.csv", text)).requests
    assert (first.arrival_s, second.arrival_s, second.prompt_tokens, second.output_tokens) == (0.0, 1.25, 635, 1439)


@pytest.mark.parametrize("origin", [0, 1_700_000_000])
@pytest.mark.parametrize(("unit", "per_s"), [("s", 1), ("ms", 1000), ("us", 10**6), ("ns", 10**9)])
def test_origin_and_unit_leave_the_gaps_alone(tmp_path, origin, unit, per_s):
    rows = [mooncake_row(timestamp=(origin + gap) * per_s) for gap in (0, 2, 5)]
    workload = load_trace(write(tmp_path, "m.jsonl", rows), time_unit=unit)
    assert [request.arrival_s for request in workload.requests] == [0.0, 2.0, 5.0]


def test_a_rate_scales_recorded_gaps(tmp_path):
    workload = load_trace(write(tmp_path, "m.jsonl", [mooncake_row(timestamp=at) for at in (0, 1000, 4000)]), rate_rps=2.0)
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.25, 1.0]


def test_every_row_is_sent_in_order_and_a_limit_takes_the_first(tmp_path):
    path = write(tmp_path, "m.jsonl", [mooncake_row(timestamp=100 * at, input_length=1 + at) for at in range(25)])
    assert [request.prompt_tokens for request in load_trace(path).requests] == list(range(1, 26))
    assert load_trace(path, limit=10).requests == load_trace(path).requests[:10]
    assert load_trace(path, limit=100) == load_trace(path)


def test_rows_of_one_time_keep_their_order(tmp_path):
    rows = [mooncake_row(timestamp=5, input_length=length) for length in (9, 3, 7)]
    assert [r.prompt_tokens for r in load_trace(write(tmp_path, "a.jsonl", rows)).requests] == [9, 3, 7]
    assert [r.prompt_tokens for r in load_trace(write(tmp_path, "b.jsonl", rows[::-1])).requests] == [7, 3, 9]


def test_rows_out_of_order_are_sorted_with_a_warning(tmp_path):
    workload = load_trace(write(tmp_path, "m.jsonl", [mooncake_row(timestamp=at) for at in (3000, 1000, 2000, 500)]))
    assert [request.request_id for request in workload.requests] == ["row-4", "row-2", "row-3", "row-1"]
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.5, 1.5, 2.5]
    (warning,) = workload.warnings
    assert "row-2 arrives before the row above it" in warning
    assert "1 more" in warning


@pytest.mark.parametrize(
    ("times_s", "warning"),
    [
        ([at * 16 * 86400 for at in (0, 1)], "arrivals span 16 days"),
        ([at / 10_000 for at in range(20)], "20 requests arrive within 0.0019 s"),
        ([at * 3600 for at in range(20)], "arrivals are 3420 s apart"),
    ],
)
def test_spans_that_suggest_another_unit_are_warned_about(tmp_path, times_s, warning):
    rows = [mooncake_row(timestamp=at) for at in times_s]
    (line,) = load_trace(write(tmp_path, "m.jsonl", rows), time_unit="s").warnings
    assert warning in line
    assert "unit" in line


@pytest.mark.parametrize(
    ("length", "hashes", "kept"),
    [(20, [7, 8], (7,)), (513, [7], (7,)), (512, [], ()), (512, None, ()), (512, "missing", ())],
)
def test_a_prompt_keeps_its_length_whatever_its_hashes(tmp_path, length, hashes, kept):
    row = mooncake_row(input_length=length, hash_ids=hashes)
    if hashes == "missing":
        del row["hash_ids"]
    workload = load_trace(write(tmp_path, "m.jsonl", [mooncake_row(), row]))
    request = workload.requests[1]
    assert (request.prompt_tokens, request.block_hashes, request.block_tokens) == (length, kept, 512 if kept else 0)
    (warning,) = workload.warnings
    assert "row 2: input of" in warning
    assert "the prompt keeps its length" in warning


def test_wide_ids_stay_apart(tmp_path):
    ids = [1, 4294967297, 2**64 - 1, 1]
    workload = load_trace(write(tmp_path, "m.jsonl", [mooncake_row(hash_ids=[wide]) for wide in ids]))
    assert [request.block_hashes for request in workload.requests] == [(wide,) for wide in ids]


def test_a_row_without_output_generates_the_prefills_token(tmp_path):
    workload = load_trace(write(tmp_path, "m.jsonl", [mooncake_row(output_length=0)] * 3))
    assert [request.output_tokens for request in workload.requests] == [1, 1, 1]
    (warning,) = workload.warnings
    assert "row 1: output_length is 0, read as 1" in warning
    assert "2 more" in warning


def test_options_are_checked(tmp_path):
    path = write(tmp_path, "m.jsonl", MOONCAKE)
    for options, message in [
        ({"limit": 0}, "limit must be >= 1, got 0"),
        ({"time_unit": "h"}, "time_unit must be one of s, ms, us, ns, got 'h'"),
        ({"format": "vidur"}, "format must be auto or one of azure, mooncake"),
        ({"rate_rps": 0.0}, "must be a finite number > 0, got 0.0"),
    ]:
        with pytest.raises(WorkloadError, match=message):
            load_trace(path, **options)
