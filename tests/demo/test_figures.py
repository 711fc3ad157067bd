"""The figures say what the samples hold."""

import pytest

from vllm_kairos.demo.client import Sample
from vllm_kairos.demo.counters import between
from vllm_kairos.demo.figures import Objectives, Transfers, decision_figures, latency_figures


def _sample(*token_times_s: float, error: str = "") -> Sample:
    return Sample(due_s=0.0, prompt_tokens=10, wanted_tokens=len(token_times_s), token_times_s=token_times_s, error=error)


def test_latency_figures_count_errors_gaps_and_violations() -> None:
    samples = [_sample(1.0, 1.1, 1.5), _sample(5.0, 5.1), _sample(error="status 503")]
    figures = latency_figures(samples, Objectives(ttft_s=4.0, tbt_s=0.25))
    assert (figures["requests"], figures["errors"], figures["error_examples"]) == (3, 1, ["status 503"])
    assert figures["ttft_s"]["mean"] == pytest.approx(3.0)
    assert (figures["tbt_gaps"], figures["tbt_violations"]) == (3, 1)
    assert figures["tbt_violation_share"] == pytest.approx(1 / 3)
    assert figures["slo_attainment"] == pytest.approx(1 / 3)  # the second is late, the third failed


def test_no_sample_at_all_has_no_percentile() -> None:
    figures = latency_figures([], Objectives())
    assert figures["ttft_s"]["p95"] is None
    assert figures["slo_attainment"] == 0.0


def test_decision_figures_split_routes_reasons_and_errors() -> None:
    local = {"decision": "decode-only", "reason": "faster", "predicted_local_ttft_s": 1.1, "ttft_s": 1.0}
    kept = {"decision": "prefill-decode", "reason": "slower", "predicted_remote_ttft_s": 1.0, "ttft_s": 2.0}
    figures = decision_figures([local, kept, kept, {"decision": "reject"}])
    assert (figures["deflected"], figures["kept"]) == (1, 2)
    assert figures["deflected_reasons"] == {"faster": 1}
    assert figures["ttft_prediction"]["deflected"]["median_relative_error"] == pytest.approx(0.1)
    assert figures["ttft_prediction"]["kept"]["median_relative_error"] == pytest.approx(0.5)


def test_a_counter_that_restarted_counts_from_zero() -> None:
    before = Transfers(pulls=5, pulled_bytes=500, skipped=9, skipped_bytes=900)
    after = Transfers(pulls=7, pulled_bytes=700, skipped=2, skipped_bytes=200)
    assert between(before, after) == Transfers(pulls=2, pulled_bytes=200, skipped=2, skipped_bytes=200)
