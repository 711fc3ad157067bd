"""The numbers of a workload, and the distributions behind the paper's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workload.workloads import session, workload_at, workloads
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import TraceRequest, Workload, describe, generate
from vllm_kairos.workload.paper import PAPER_WORKLOADS
from vllm_kairos.workload.quantiles import Bucket, LengthDistribution
from vllm_kairos.workload.transforms import scaled

PRINTED = {0.25: 2071.0, 0.5: 3569.0, 0.9: 10336.0}
LENGTHS = LengthDistribution.through(PRINTED)


def test_a_small_workload_by_hand():
    numbers = describe(workload_at([0.0, 1.0, 4.0], prompts=[10, 20, 40], block_tokens=10))
    assert (numbers.requests, numbers.duration_s, numbers.rate_rps) == (3, 4.0, 0.5)
    assert numbers.scv == pytest.approx(0.25)
    spread = numbers.prompt_tokens
    assert (spread.p25, spread.p50, spread.least, spread.most) == (15.0, 20.0, 10, 40)
    assert spread.mean == pytest.approx(70 / 3)
    assert numbers.pd_ratio.p50 == 4.0
    assert numbers.prefix_reuse == pytest.approx((0 + 10 + 20) / 70)
    assert numbers.idc == {1.0: pytest.approx(0.5)}
    assert numbers.beside_paper == ()


def test_what_waits_is_no_part_of_the_arrivals():
    numbers = describe(session())
    assert (numbers.closed_loop_requests, numbers.rate_rps, numbers.scv, numbers.idc) == (2, None, None, {})


@given(workloads())
def test_every_workload_can_be_described(workload):
    numbers = describe(workload)
    assert numbers.prompt_tokens.least <= numbers.prompt_tokens.p50 <= numbers.prompt_tokens.most
    assert 0 <= numbers.prefix_reuse <= 1


@pytest.mark.parametrize("name", PAPER_WORKLOADS)
def test_the_papers_numbers_stand_beside_the_achieved_ones(name):
    rows = {row.quantity: row for row in describe(generate(name, requests=4000, seed=0)).beside_paper}
    assert rows["prompt_tokens p50"].paper == PAPER_WORKLOADS[name].prompt_p50
    assert ("output_tokens p90" in rows) == (name == "Bursty")
    assert all(abs(row.error) < 0.13 for row in rows.values())


@pytest.mark.parametrize(("rank", "length"), PRINTED.items())
def test_a_distribution_goes_through_its_quantiles(rank, length):
    assert LENGTHS.quantile(rank) == pytest.approx(length)
    assert LENGTHS.rank(length) == pytest.approx(rank)


@given(st.floats(1e-6, 1 - 1e-6), st.floats(1e-6, 1 - 1e-6))
def test_a_higher_rank_is_never_shorter(one, other):
    low, high = sorted((one, other))
    assert LENGTHS.quantile(low) <= LENGTHS.quantile(high) * (1 + 1e-12)


@given(st.floats(1e-4, 1 - 1e-4))
def test_rank_is_the_inverse_of_quantile(rank):
    assert LENGTHS.rank(LENGTHS.quantile(rank)) == pytest.approx(rank, abs=1e-9)


def test_a_bucket_has_its_median_and_keeps_to_its_ranks():
    bucket = Bucket.with_median(LENGTHS, low_rank=0.0, high_rank=0.25, median=1000)
    assert bucket.tokens(0.5) == 1000
    assert bucket.tokens(1 - 1e-12) == 2071
    assert bucket.tokens(1e-12) >= 1
    assert bucket.tokens(0.9, 500) == 500
    with pytest.raises(ValueError, match=r"median must lie within ranks 0.0 to 0.25, got 3000"):
        Bucket.with_median(LENGTHS, low_rank=0.0, high_rank=0.25, median=3000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_tokens": 0}, "prompt_tokens must be >= 1, got 0"),
        ({"output_tokens": 0}, "output_tokens must be >= 1, got 0"),
        ({"arrival_s": -0.1}, "arrival_s must be a finite number >= 0, got -0.1"),
        ({"arrival_s": float("nan")}, "arrival_s must be a finite number >= 0, got nan"),
        ({"think_s": float("inf")}, "think_s must be a finite number >= 0, got inf"),
        ({"block_tokens": 16}, "block_tokens must be > 0 exactly when there are block_hashes, got 16"),
        ({"block_tokens": 16, "block_hashes": (1, 2)}, "block_hashes must be at most 1, got 2"),
    ],
)
def test_a_request_states_its_rules(changes, message):
    with pytest.raises(WorkloadError, match=f"request 'a': {message}"):
        TraceRequest(**{"request_id": "a", "arrival_s": 0.0, "prompt_tokens": 4, "output_tokens": 1} | changes)


def test_a_workload_has_requests():
    with pytest.raises(WorkloadError, match="must have at least one request"):
        Workload(name="none", requests=())


def test_requests_that_come_all_at_once_have_no_rate():
    numbers = describe(scaled(generate("LPLD", requests=5, seed=0), 1e300))
    assert (numbers.rate_rps, numbers.scv) == (None, None)
