"""What is read out of step files and vLLM's metrics."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.governor.engine_view import engine_figures, recovery_s, tpot_attainment, tpot_buckets, windows
from tests.steps.test_report import header
from vllm_kairos.steps.step_file import StepLine, encode_line

HEADER = msgspec.structs.replace(header(), started_at_s=1000.0)
METRICS = """\
# HELP vllm:request_time_per_output_token_seconds Histogram of time_per_output_token_seconds per request.
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="0.01",model_name="m"} 2.0
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="0.025",model_name="m"} 6.0
vllm:request_time_per_output_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:request_time_per_output_token_seconds_count{engine="0",model_name="m"} 8.0
"""


def _line(at, *gaps):
    return StepLine(step=1, at=at, B=2, K=10, took=0.1, run=0.1, cause="unplanned", gaps=[("unplanned", *gap) for gap in gaps])


@pytest.fixture
def file(tmp_path):
    lines = [HEADER, _line(1.0, (2, 0.1)), _line(2.0, (1, 0.3)), _line(12.0, (4, 0.2)), _line(31.0, (1, 0.9))]
    path = tmp_path / "steps.jsonl.d0"
    path.write_bytes(b"".join(map(encode_line, lines)))
    return path


def test_a_cell_is_what_ended_in_its_time(file):
    found = engine_figures([file], 0.25, (1001.5, 1030.0))
    assert (found["steps"], found["gaps"], found["violations"], found["violation_share"]) == (2, 5, 1, 0.2)
    assert found["violations_by_cause"]["unplanned"] == 1
    assert (found["p50_s"], found["longest_s"]) == (0.2, 0.3)
    assert engine_figures([file], 0.25, (2000.0, 2001.0))["gaps"] == 0


def test_windows_are_of_ten_seconds(file):
    assert windows([file], 0.25, (1000.0, 1025.0)) == [
        {"from_s": 0.0, "gaps": 3, "violations": 1},
        {"from_s": 10.0, "gaps": 4, "violations": 0},
        {"from_s": 20.0, "gaps": 0, "violations": 0},
    ]


WINDOWS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8)


@settings(max_examples=100)
@given(WINDOWS, st.sampled_from([0.0, 0.01, 0.5]))
def test_what_follows_a_recovery_is_within_the_share(pairs, share):
    found = [{"from_s": 10.0 * at, "gaps": gaps, "violations": min(gaps, late)} for at, (gaps, late) in enumerate(pairs)]
    at_s = recovery_s(found, share)
    sums = [[sum(each[name] for each in found[at:]) for name in ("gaps", "violations")] for at in range(len(found))]
    good = [10.0 * at for at, (gaps, violations) in enumerate(sums) if gaps and violations <= share * gaps]
    assert at_s == (good[0] if good else None)


def test_tpot_by_vllms_histogram():
    after = tpot_buckets(METRICS)
    assert after == {0.01: 2.0, 0.025: 6.0, float("inf"): 8.0}
    assert tpot_attainment({}, after, 0.025) == 0.75
    assert tpot_attainment({0.01: 2.0, 0.025: 5.0, float("inf"): 6.0}, after, 0.025) == 0.5
    assert tpot_attainment({}, after, 0.02) is None
    assert tpot_attainment(after, after, 0.025) is None
    assert tpot_attainment({}, {}, 0.025) is None
