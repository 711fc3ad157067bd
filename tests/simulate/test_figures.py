"""A simulation's figures follow from its records."""

import csv
import io
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from tests.simulate.runs import cell, outcome_of, result_of
from vllm_kairos.core.decision import Reject, RejectReason
from vllm_kairos.results.json_text import to_json
from vllm_kairos.sim.record import Breakdown, Objectives, RequestRecord
from vllm_kairos.simulate.document import requests_csv, summary_csv
from vllm_kairos.simulate.figures import ERROR_RANKS, PARTS, figures_of, flat
from vllm_kairos.simulate.sweep import cell_workload, make_simulation

OBJECTIVES = Objectives()


@pytest.fixture(scope="module")
def outcome():
    return outcome_of(cell())


@pytest.fixture(scope="module")
def figures(outcome):
    return figures_of(outcome, OBJECTIVES)


def test_latencies_are_those_of_the_records(outcome, figures):
    ttfts_s = [record.ttft_s for record in outcome.requests]
    assert figures.ttft_s.p95 == pytest.approx(np.percentile(ttfts_s, 95))
    assert figures.ttft_s.mean == pytest.approx(np.mean(ttfts_s))
    assert figures.slo_attainment == sum(record.attains(OBJECTIVES) for record in outcome.requests) / len(ttfts_s)


def test_every_gap_of_every_request_counts_once(outcome, figures):
    gaps = sum(record.request.output_tokens - 1 for record in outcome.requests)
    assert figures.tbt_s.count == gaps
    total_s = sum(record.tpot_s * (record.request.output_tokens - 1) for record in outcome.requests if record.tpot_s > 0)
    assert figures.tbt_s.mean * gaps == pytest.approx(total_s, rel=0.02)  # hops at both ends are the router's


def test_decisions_add_up(figures):
    assert figures.deflected + sum(figures.kept_reasons.values()) + figures.rejected == figures.requests
    assert sum(figures.deflected_reasons.values()) == figures.deflected > 0
    assert figures.error_kept.requests + figures.error_deflected.requests == figures.requests
    assert len(figures.error_deflected.by_percentile) == len(ERROR_RANKS)
    assert figures.transfers == figures.requests - figures.deflected


def test_the_breakdown_adds_up_to_the_ttft(figures):
    assert list(PARTS) == [item.name for item in fields(Breakdown)]
    assert sum(part.mean for part in figures.breakdown.values()) == pytest.approx(figures.ttft_s.mean)


def test_what_was_rejected_attains_nothing_and_has_no_latency(outcome):
    refused = RequestRecord(
        request=outcome.requests[0].request, arrival_s=0.0, decision=Reject(reason=RejectReason.NO_PREFILL_NODE)
    )
    half = replace(outcome, requests=(*outcome.requests, *[refused] * len(outcome.requests)))
    figures, before = figures_of(half, OBJECTIVES), figures_of(outcome, OBJECTIVES)
    assert figures.rejected_reasons == {"no-prefill-node": len(outcome.requests)}
    assert figures.slo_attainment == pytest.approx(before.slo_attainment / 2)
    assert figures.ttft_s == before.ttft_s


def test_no_answer_at_all_is_figures_without_latencies():
    figures = result_of(cell("--cluster", "2D", "--prefill-unavailable", "fail", policy="never")).figures
    assert figures.rejected == figures.requests
    assert figures.ttft_s.p95 is None
    assert figures.output_tokens_per_s == 0
    assert figures.slo_attainment == 0


def test_without_prefill_nodes_and_with_all_deflected_every_time_is_the_same():
    alone = outcome_of(cell("--cluster", "1D", "--prefill-unavailable", "deflect", policy="always"))
    beside_idle = outcome_of(cell("--cluster", "1P1D", policy="always"))
    assert [one.ttft_s for one in alone.requests] == [one.ttft_s for one in beside_idle.requests]
    assert alone.transfers == 0
    assert figures_of(alone, OBJECTIVES).breakdown["transfer_s"].most == 0


def test_free_transfers_change_transfers_only():
    slow = result_of(cell("--nic-gb-per-s", "1", policy="never", rate_rps=0.5)).figures
    fast = result_of(cell("--nic-gb-per-s", "1e6", "--latency-s", "0", policy="never", rate_rps=0.5)).figures
    assert fast.breakdown["transfer_s"].mean < 0.02 < slow.breakdown["transfer_s"].mean
    assert fast.breakdown["prefill_exec_s"] == slow.breakdown["prefill_exec_s"]


def test_a_preemption_is_not_counted_twice():
    outcome = outcome_of(cell("--workload", "LPHD", "--kv-tokens", "6000", policy="never", rate_rps=20.0))
    assert figures_of(outcome, OBJECTIVES).preemptions > 0
    for record in outcome.requests:
        gaps_s = record.tpot_s * (record.request.output_tokens - 1) if record.request.output_tokens > 1 else 0.0
        assert record.ttft_s + gaps_s == pytest.approx(record.finished_s - record.arrival_s)
    tokens = sum(engine.decode_tokens for engine in outcome.engines)
    assert tokens <= sum(record.request.output_tokens for record in outcome.requests)


def test_documents_hold_plain_numbers(figures):
    document = json.loads(to_json({"figures": figures, "nothing": float("inf")}))
    assert document["nothing"] is None
    assert document["figures"]["ttft_s"]["p95"] == pytest.approx(figures.ttft_s.p95)
    assert flat(figures.as_json())["tbt_s.violation_share"] == figures.tbt_s.violation_share


def test_csv_has_a_row_per_cell_and_per_request():
    results = [result_of(replace(cell(policy=policy), with_requests=True)) for policy in ("never", "kairos")]
    rows = list(csv.DictReader(io.StringIO(summary_csv(results))))
    assert [row["policy"] for row in rows] == ["never", "kairos"]
    assert float(rows[0]["figures.ttft_s.p95"]) == pytest.approx(results[0].figures.ttft_s.p95, rel=1e-8)
    requests = list(csv.DictReader(io.StringIO(requests_csv(results))))
    assert len(requests) == sum(result.figures.requests for result in results)
    assert {row["decision"] for row in requests} == {"prefill-decode", "decode-only"}


@pytest.mark.parametrize("policy", ["oracle", "taichi:256", "aggregated"])
def test_policies_that_only_a_simulation_has_run_too(policy):
    figures = result_of(cell("--cluster", "1P1D1B", policy=policy)).figures
    assert figures.rejected == 0
    assert figures.ttft_s.p50 > 0


def test_aggregated_engines_chunk_by_their_token_budget_alone():
    bounded = make_simulation(cell("--cluster", "1B", policy="kairos"), cell_workload(cell()))
    stock = make_simulation(cell("--cluster", "1B", policy="aggregated"), cell_workload(cell()))
    assert bounded.engines["b0"].spec.default_chunk_tokens == 512
    assert stock.engines["b0"].spec.default_chunk_tokens is None
