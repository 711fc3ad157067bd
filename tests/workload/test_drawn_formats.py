"""Formats whose arrivals are drawn: lengths without times, and ServeGen's client models."""

from math import sqrt
from random import Random
from statistics import fmean, pstdev

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.workload.files import write
from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload import describe, load_trace
from vllm_kairos.workload.arrivals import arrival_times_s
from vllm_kairos.workload.renewal import WINDOW_S, Window, client_arrivals_s

LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n" + "74,918,992,0.08\n290,0,290,0\n" * 400
WINDOWS = "client_id,window_start_s,rate_rps,cv,pattern,shape,scale\n"
QUIET = "".join(f"0,{start},0.5,1,Gamma,1,2\n" for start in range(0, 7200, 600))
BUSY = "".join(f"1,{start},2,2.2,Weibull,0.5,0.25\n" for start in range(3600, 7200, 600))
CLIENTS = [
    {"client_id": 0, "t": 0, "input_tokens": {"100": 0.5, "200": 0.5}, "output_tokens": {"0": 1.0}},
    {"client_id": 1, "t": 0, "input_tokens": {"7": 1.0}, "output_tokens": {"70": 1.0}},
    {"client_id": 1, "t": 5400, "input_tokens": {"9": 1.0}, "output_tokens": {"90": 1.0}},
]


def _model(folder, windows: str = WINDOWS + QUIET + BUSY, clients: list[dict] | None = None):
    write(folder, "m_lengths.jsonl", CLIENTS if clients is None else clients)
    return write(folder, "m_windows.csv", windows)


def test_lengths_get_arrivals_of_the_asked_rate_and_burstiness(tmp_path):
    path = write(tmp_path, "l.csv.gz", LENGTHS)
    workload = load_trace(path, rate_rps=5.0)
    assert [request.prompt_tokens for request in workload.requests[:3]] == [74, 290, 74]
    assert [request.output_tokens for request in workload.requests[:3]] == [918, 1, 918]
    assert describe(workload).rate_rps == pytest.approx(5.0, rel=0.1)
    assert describe(workload).scv == pytest.approx(1.0, abs=0.25)
    assert describe(load_trace(path, rate_rps=5.0, scv=0.0)).scv == pytest.approx(0.0, abs=1e-9)
    assert describe(load_trace(path, rate_rps=5.0, scv=6.0)).scv > 3
    assert len(load_trace(path, rate_rps=5.0, limit=7).requests) == 7


def test_lengths_need_a_rate(tmp_path):
    with pytest.raises(WorkloadError, match="rate_rps, requests per second, must be given: the file has no arrival times"):
        load_trace(write(tmp_path, "l.csv", LENGTHS))


@given(st.integers(0, 50), st.floats(0.01, 100), st.floats(0, 20), st.integers())
@example(count=50, rate_rps=1.0, scv=5e-324, seed=0)
@example(count=50, rate_rps=1.0, scv=1e-9, seed=0)
def test_drawn_arrivals_start_at_once_and_never_go_back(count, rate_rps, scv, seed):
    arrivals = arrival_times_s(count, rate_rps=rate_rps, scv=scv, rng=Random(seed))
    assert len(arrivals) == count
    assert arrivals == sorted(arrivals)
    assert arrivals[:1] == [0.0][:count]


def test_the_busiest_hour_of_a_client_model_is_drawn_at_its_own_rates(tmp_path):
    workload = load_trace(_model(tmp_path))
    by_client = {client: [r for r in workload.requests if r.request_id.startswith(f"client-{client}/")] for client in (0, 1)}
    assert len(by_client[0]) == pytest.approx(1800, rel=0.1)
    assert len(by_client[1]) == pytest.approx(7200, rel=0.1)
    assert {request.prompt_tokens for request in by_client[0]} == {100, 200}
    assert {request.output_tokens for request in by_client[0]} == {1}
    assert {(r.prompt_tokens, r.output_tokens) for r in by_client[1] if r.arrival_s < 1790} == {(7, 70)}
    assert {(r.prompt_tokens, r.output_tokens) for r in by_client[1] if r.arrival_s > 1810} == {(9, 90)}
    assert workload.duration_s <= 3600


def test_a_model_is_drawn_at_a_given_rate_and_span_and_repeats(tmp_path):
    path = _model(tmp_path)
    workload = load_trace(path, rate_rps=1.0, start_s=0.0, duration_s=1200.0)
    assert len(workload.requests) == pytest.approx(1200, rel=0.15)
    assert load_trace(path, rate_rps=1.0, start_s=0.0, duration_s=1200.0) == workload
    assert load_trace(path, rate_rps=1.0, start_s=0.0, duration_s=1200.0, limit=9).requests == workload.requests[:9]


def test_clients_without_lengths_are_left_out_with_a_warning(tmp_path):
    (warning,) = load_trace(_model(tmp_path, clients=CLIENTS[:1])).warnings
    assert "1 of 2 clients have no lengths and are left out; those kept send 33% of the requests" in warning


@pytest.mark.parametrize(
    ("windows", "clients", "options", "message"),
    [
        (WINDOWS, None, {}, "must have at least one request, got none"),
        (WINDOWS + "0,0,-1,1,Gamma,1,1\n", None, {}, "row 2: rate_rps must be a finite number >= 0, got '-1'"),
        (WINDOWS + "0,0,1,1,Pareto,1,1\n", None, {}, "row 2: pattern must be one of Gamma, Weibull, got 'Pareto'"),
        (WINDOWS + "0,0,1,1,Gamma,0,1\n", None, {}, r"row 2: shape must be a number in \[0.001, 1e\+09\], got '0'"),
        (WINDOWS + "0,0,1,1,Gamma,1e300,1\n", None, {}, r"row 2: shape must be a number in \[0.001, 1e\+09\], got '1e300'"),
        (WINDOWS + "0,0,1,1,Weibull,0.01,1\n", None, {}, r"row 2: shape must be a number in \[0.15, 1e\+09\], got '0.01'"),
        (WINDOWS + QUIET, CLIENTS[1:], {}, "at least one client must have lengths, got none of 1"),
        (WINDOWS + QUIET, None, {"start_s": 9000.0}, "start_s must be within the file's windows, got 9000"),
        (WINDOWS + QUIET, None, {"duration_s": 100.0}, "duration_s must be a multiple of 600"),
        (WINDOWS + QUIET, None, {"rate_rps": 1e6}, "at most 2000000 requests are drawn, got 3600000000"),
        (WINDOWS + QUIET, [CLIENTS[0] | {"input_tokens": {"0": 1.0}}], {}, "token counts >= 1 to probabilities"),
        (WINDOWS + QUIET, [CLIENTS[0] | {"input_tokens": {"a": 1.0}}], {}, "from token counts to probabilities"),
        (WINDOWS + QUIET, [CLIENTS[0] | {"output_tokens": {"5": 0.0}}], {}, "an object with a probability > 0"),
    ],
)
def test_faults_of_client_models_are_named(tmp_path, windows, clients, options, message):
    with pytest.raises(WorkloadError, match=message):
        load_trace(_model(tmp_path, windows, clients), **options)


def test_lengths_are_found_by_name_or_given(tmp_path):
    path = write(tmp_path, "clients.csv", WINDOWS + QUIET)
    with pytest.raises(WorkloadError, match="lengths_path must be given"):
        load_trace(path)
    assert load_trace(path, lengths_path=write(tmp_path, "tokens.jsonl.gz", CLIENTS)).requests
    with pytest.raises(WorkloadError, match="cannot be read"):
        load_trace(write(tmp_path, "alone_windows.csv", WINDOWS + QUIET))


@pytest.mark.parametrize(("family", "shape", "cv"), [("Gamma", 0.25, 2.0), ("Weibull", 0.5, sqrt(5)), ("Weibull", 2.0, 0.5227)])
def test_gaps_have_mean_one_and_their_laws_variation(family, shape, cv):
    window, rng = Window(start_s=0.0, rate_rps=1.0, family=family, shape=shape), Random(0)
    gaps = [window.unit_gap(rng) for _ in range(40_000)]
    assert fmean(gaps) == pytest.approx(1.0, rel=0.05)
    assert pstdev(gaps) == pytest.approx(cv, rel=0.1)
    waits = [window.unit_wait(rng) for _ in range(40_000)]
    assert fmean(waits) == pytest.approx((1 + cv**2) / 2, rel=0.1)  # the inspection paradox


@pytest.mark.parametrize(("family", "shape"), [("Gamma", 0.1), ("Weibull", 0.4), ("Gamma", 1.0)])
def test_a_client_keeps_each_windows_rate_however_bursty(family, shape):
    windows = [Window(start_s=i * WINDOW_S, rate_rps=rate, family=family, shape=shape) for i, rate in enumerate((0.02, 0.05))]
    counts = [0, 0]
    for seed in range(400):
        for arrival_s in client_arrivals_s(windows, 1.0, Random(seed)):
            counts[int(arrival_s // WINDOW_S)] += 1
    assert counts[0] / 400 == pytest.approx(12, rel=0.15)
    assert counts[1] / 400 == pytest.approx(30, rel=0.15)
