"""A failure is over when requests due from then on are answered, and as soon as they were before."""

from dataclasses import replace

import pytest

from benchmarks.serving.failing.record import summary
from benchmarks.serving.failing.recovery import SLOW_FACTOR, recovery
from benchmarks.serving.failing.scenarios import SCENARIOS
from benchmarks.serving.failing.verdict import Judged, Verdict
from vllm_kairos.replay.sample import Sample
from vllm_kairos.workload.request import TraceRequest

USUAL_S = 0.3


def seen(due_s: float, verdict: Verdict = Verdict.RIGHT, ttft_s: float = USUAL_S) -> Judged:
    request = TraceRequest(request_id=f"r{due_s}", arrival_s=due_s, prompt_tokens=8, output_tokens=3)
    sample = Sample(
        request=request,
        sent_id=f"r{due_s}",
        due_s=due_s,
        sent_s=due_s,
        ended_s=due_s + 3.0,
        arrivals_s=(due_s + ttft_s,),
        error="" if verdict is Verdict.RIGHT else "http_503",
    )
    return Judged(sample=sample, verdict=verdict)


def load(**changed: Judged) -> list[Judged]:
    """A request a second for 20 s; `at5=...` replaces the one due at 5."""
    return [changed.get(f"at{due_s}", seen(float(due_s))) for due_s in range(20)]


def test_a_failure_that_nobody_felt_is_over_at_once() -> None:
    found = recovery(load(), fault_s=8.0, until_s=20.0)
    assert found.ttft_before_s == pytest.approx(USUAL_S)
    assert (found.failing_s, found.slow_s, found.slow_requests) == (0.0, 0.0, 0)


def test_it_lasts_to_the_last_request_that_failed_and_to_the_last_that_was_slow() -> None:
    slow = seen(13.0, ttft_s=USUAL_S * SLOW_FACTOR * 1.1)
    found = recovery(load(at10=seen(10.0, Verdict.TOLD), at13=slow), fault_s=8.0, until_s=20.0)
    assert (found.failing_s, found.slow_s, found.slow_requests) == (2.0, 5.0, 1)


def test_there_is_no_recovery_where_requests_fail_to_the_end() -> None:
    found = recovery(load(at19=seen(19.0, Verdict.LOST)), fault_s=8.0, until_s=20.0)
    assert (found.failing_s, found.slow_s) == (None, None)


def test_what_comes_after_the_stretch_is_another_matter() -> None:
    assert recovery(load(at17=seen(17.0, Verdict.LOST)), fault_s=8.0, until_s=16.0).failing_s == 0.0


def test_requests_of_the_first_seconds_are_not_what_was_usual() -> None:
    assert recovery(load(at0=seen(0.0, ttft_s=9.0)), fault_s=3.0, until_s=20.0).ttft_before_s == pytest.approx(USUAL_S)


def test_a_cell_counts_every_request_once_and_tells_those_under_way_apart() -> None:
    scenario = replace(SCENARIOS["kill-decode"], fault_s=8.0, back_s=16.0)
    judged = load(at2=seen(2.0, Verdict.TOLD), at7=seen(7.0, Verdict.BROKEN), at18=seen(18.0, Verdict.LOST))
    found = summary(judged, scenario, {"fault": 8.0, "start": 16.0, "healthy": 17.0})
    assert found["requests"] == sum(found["verdicts"].values()) == 20
    assert (found["under_way"], found["under_way_failed"]) == (3, 1)
    assert (found["failed_before"], found["failed_after_return"]) == (1, 1)
    assert found["errors"] == {"http_503": 3}
