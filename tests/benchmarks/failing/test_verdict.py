"""What became of a request is judged by its text first, and then by what its client was told."""

import pytest

from benchmarks.serving.failing.verdict import Verdict, judge
from vllm_kairos.replay.sample import Sample
from vllm_kairos.workload.request import TraceRequest

WORDS = ["one", "two", "three"]


def sample(error: str = "") -> Sample:
    request = TraceRequest(request_id="r", arrival_s=0.0, prompt_tokens=8, output_tokens=3)
    return Sample(request=request, sent_id="r", due_s=0.0, sent_s=0.0, ended_s=1.0, error=error)


@pytest.mark.parametrize(
    ("error", "said", "verdict"),
    [
        ("", WORDS, Verdict.RIGHT),
        ("", WORDS[:2], Verdict.LOST),
        ("", [], Verdict.LOST),
        ("", [*WORDS, "four"], Verdict.WRONG),
        ("", ["one", "three", "two"], Verdict.WRONG),
        ("cut_off", ["one", "one"], Verdict.WRONG),
        ("error_event", WORDS[:1], Verdict.TOLD),
        ("http_503", [], Verdict.TOLD),
        ("connect", [], Verdict.BROKEN),
        ("no_answer", [], Verdict.BROKEN),
        ("cut_off", WORDS[:2], Verdict.BROKEN),
        ("truncated", WORDS[:2], Verdict.LOST),
        ("truncated", WORDS, Verdict.LOST),
        ("timeout", WORDS[:2], Verdict.LOST),
        ("no_tokens", [], Verdict.LOST),
        ("malformed", [], Verdict.LOST),
    ],
)
def test_a_request_is_judged_by_its_text_and_by_what_the_client_was_told(error: str, said: list[str], verdict: Verdict) -> None:
    assert judge(sample(error), said, WORDS) is verdict
