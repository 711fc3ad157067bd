"""The paper's five workloads and those of public traces: close to their numbers, repeatable, the same at every rate."""

import re
from itertools import pairwise
from statistics import mean, median, pvariance

import pytest

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import generate
from vllm_kairos.workload.paper import BURSTY_SCV, CONTEXT_TOKENS, PAPER_WORKLOADS

every_row = pytest.mark.parametrize("row", PAPER_WORKLOADS.values(), ids=lambda row: row.name)
COUNT = 8000


@every_row
def test_medians_and_rate_are_the_papers(row):
    workload = generate(row.name, requests=COUNT, seed=0)
    requests = workload.requests
    assert median(request.prompt_tokens for request in requests) == pytest.approx(row.prompt_p50, rel=0.03)
    assert median(request.output_tokens for request in requests) == pytest.approx(row.output_p50, rel=0.03)
    ratio = median(request.prompt_tokens / request.output_tokens for request in requests)
    assert ratio == pytest.approx(row.pd_ratio_p50, rel=0.12)
    assert (COUNT - 1) / workload.duration_s == pytest.approx(row.rate_rps, rel=0.1)


@pytest.mark.parametrize(
    ("name", "prompt_mean", "output_mean"), [("chat", 1155, 211), ("long-context", 10297, 343), ("mixed", 2983, 237)]
)
def test_lengths_are_those_of_the_public_traces(name: str, prompt_mean: float, output_mean: float):
    """The means of the traces, the long one's with its prompts cut to the window."""
    requests = generate(name, requests=COUNT, seed=0).requests
    assert mean(request.prompt_tokens for request in requests) == pytest.approx(prompt_mean, rel=0.06)
    assert mean(request.output_tokens for request in requests) == pytest.approx(output_mean, rel=0.06)
    assert max(request.prompt_tokens + request.output_tokens for request in requests) <= CONTEXT_TOKENS


@every_row
def test_every_request_fits_the_context_and_its_buckets(row):
    for request in generate(row.name, requests=COUNT, seed=1).requests:
        assert request.prompt_tokens + request.output_tokens <= CONTEXT_TOKENS
        assert row.prompt_ranks[0] == 0 or request.prompt_tokens >= 10336
        assert row.prompt_ranks[1] == 1 or request.prompt_tokens <= 2071


@every_row
def test_equal_arguments_give_equal_workloads_and_another_seed_another_one(row):
    assert generate(row.name, requests=50, seed=7) == generate(row.name, requests=50, seed=7)
    assert generate(row.name, requests=50, seed=7) != generate(row.name, requests=50, seed=8)


def test_bursty_arrivals_are_as_bursty_as_stated_and_the_strata_are_poisson():
    assert _scv("Bursty") == pytest.approx(BURSTY_SCV, rel=0.2)
    assert _scv("LPLD") == pytest.approx(1.0, rel=0.1)
    assert _scv("LPLD", scv=9.0) == pytest.approx(9.0, rel=0.25)
    assert _scv("LPLD", scv=0.0) == pytest.approx(0.0, abs=1e-9)


def _scv(name: str, scv: float | None = None) -> float:
    arrivals = [request.arrival_s for request in generate(name, requests=COUNT, seed=3, scv=scv).requests]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    return pvariance(gaps) / (sum(gaps) / len(gaps)) ** 2


def test_twice_the_rate_is_the_same_requests_twice_as_fast():
    slow, fast = (generate("Bursty", requests=100, seed=5, rate_rps=rate) for rate in (2.0, 4.0))
    for one, other in zip(slow.requests, fast.requests, strict=True):
        assert one.arrival_s == pytest.approx(2 * other.arrival_s)
        assert (one.prompt_tokens, one.output_tokens) == (other.prompt_tokens, other.output_tokens)


def test_more_requests_begin_with_the_same_ones():
    assert generate("LPHD", requests=50, seed=5).requests[:20] == generate("LPHD", requests=20, seed=5).requests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "LPXD"}, "workload must be one of LPLD, LPHD, HPLD, HPHD, Bursty, chat, long-context, mixed, got 'LPXD'"),
        ({"requests": 0}, "requests must be >= 1, got 0"),
        ({"rate_rps": 0.0}, "rate_rps must be a finite number > 0, got 0.0"),
        ({"rate_rps": float("nan")}, "rate_rps must be a finite number > 0, got nan"),
        ({"scv": 1e300}, "scv must be in [0, 1000], got 1e+300"),
        ({"scv": -1.0}, "scv must be in [0, 1000], got -1.0"),
    ],
)
def test_what_cannot_be_drawn_is_refused(arguments, message):
    with pytest.raises(WorkloadError, match=re.escape(message)):
        generate(**{"name": "LPLD", "requests": 5, "seed": 0} | arguments)
