"""Files that cannot be read: the error names the file, the row, the field, the rule and the value."""

import gzip
import re

import pytest

from tests.workload.files import AZURE, MOONCAKE, mooncake_row, write
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import load_trace
from vllm_kairos.workload.source import Source

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SAMPLE = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def _refused(path, message: str, **options) -> None:
    with pytest.raises(WorkloadError, match=re.escape(message)) as caught:
        load_trace(path, **options)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have at least one row, got an empty file"),
        ("\n\n", "must have at least one row, got an empty file"),
        (HEADER, "must have at least one request, got none"),
        (HEADER + "2023-11-16 18:15:46,-3,44\n", "row 2: ContextTokens must be a whole number >= 1, got '-3'"),
        (HEADER + "2023-11-16 18:15:46,0,44\n", "row 2: ContextTokens must be a whole number >= 1, got '0'"),
        (HEADER + "2023-11-16 18:15:46,3,-1\n", "row 2: GeneratedTokens must be a whole number >= 0, got '-1'"),
        (HEADER + "2023-11-16 18:15:46,nan,4\n", "row 2: ContextTokens must be a whole number >= 1, got 'nan'"),
        (HEADER + "2023-11-16 18:15:46,2.5,4\n", "row 2: ContextTokens must be a whole number >= 1, got '2.5'"),
        (HEADER + "2023-11-16 18:15:46,3\n", "row 2 must have 3 columns, as the header, got 2"),
        (HEADER + "yesterday,3,4\n", "row 2: TIMESTAMP must be a date and time such as"),
        ("arrived_at," + SAMPLE + "0,0,3,4\n", "row 1 must name each column once, got 'arrived_at' twice"),
        ('{"timestamp":' + "[" * 20_000, "row 1 must be a JSON object, got "),
        (SAMPLE + "nan,3,4\n", "row 2: arrived_at must be a finite number >= 0, got 'nan'"),
        (SAMPLE + "inf,3,4\n", "row 2: arrived_at must be a finite number >= 0, got 'inf'"),
        (SAMPLE + "1,3,4\n-1,3,4\n", "row 3: arrived_at must be a finite number >= 0, got '-1'"),
    ],
)
def test_csv_faults_are_named(tmp_path, text, message):
    _refused(write(tmp_path, "t.csv", text), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_length": -1}, "row 2: input_length must be a whole number >= 1, got -1"),
        ({"input_length": True}, "row 2: input_length must be a whole number >= 1, got True"),
        ({"input_length": None}, "row 2: input_length must be a whole number >= 1, got None"),
        ({"input_length": float("nan")}, "row 2: input_length must be a whole number >= 1, got nan"),
        ({"output_length": [1]}, "row 2: output_length must be a whole number >= 0, got [1]"),
        ({"timestamp": float("inf")}, "row 2: timestamp must be a finite number >= 0, got inf"),
        ({"timestamp": 10**400}, "row 2: timestamp must be a finite number >= 0, got 1000"),
        ({"timestamp": -5}, "row 2: timestamp must be a finite number >= 0, got -5"),
        ({"hash_ids": [1.5]}, "row 2: hash_ids must be a list of whole numbers, got [1.5]"),
        ({"hash_ids": "abc"}, "row 2: hash_ids must be a list, got 'abc'"),
    ],
)
def test_json_faults_are_named(tmp_path, changes, message):
    _refused(write(tmp_path, "m.jsonl", [mooncake_row(), mooncake_row(**changes)]), message)


def test_a_missing_field_is_named(tmp_path):
    _refused(write(tmp_path, "m.jsonl", [mooncake_row(), {"timestamp": 1}]), "row 2: input_length is missing")
    _refused(write(tmp_path, "t.csv", "TIMESTAMP,ContextTokens\n1,2\n"), "row 2: GeneratedTokens is missing", format="azure")


@pytest.mark.parametrize("line", ["[1, 2]", "{broken", "7"])
def test_a_line_that_is_no_object_is_named(tmp_path, line):
    path = write(tmp_path, "m.jsonl", f'{{"timestamp": 0, "input_length": 1, "output_length": 1}}\n{line}\n')
    _refused(path, "row 2 must be a JSON object, got")


@pytest.mark.parametrize("text", ["a,b,c\n1,2,3\n", '{"a": 1}\n', "plain words\n"])
def test_an_unknown_format_lists_the_known_ones(tmp_path, text):
    path = write(tmp_path, "t.txt", text)
    _refused(path, "must be of a known format")
    for name in (
        "azure",
        "mooncake",
        "claude-code",
        "dynamo-agent",
        "servegen-sample",
        "servegen-windows",
        "lengths",
        "kairos",
    ):
        _refused(path, f"  {name}: ")


def test_a_file_that_cannot_be_opened_is_an_error_of_ours(tmp_path):
    _refused(tmp_path / "none.csv", "cannot be read")
    _refused(tmp_path, "cannot be read")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(repr(MOONCAKE).encode() * 50)[:-20])
    _refused(cut, "cannot be read")
    binary = tmp_path / "binary.csv"
    binary.write_bytes(AZURE.encode() + b"\xff\xfe\n")
    _refused(binary, "cannot be read", format="azure")


def test_a_file_is_closed_whatever_ends_its_reading(tmp_path):
    path = write(tmp_path, "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n0,5,5\n1,x,5\n2,5,5\n")
    with Source(path) as source:
        records = source.csv_records()
        next(records)
        (stream,) = source._opened
        assert not stream.closed
    assert stream.closed
