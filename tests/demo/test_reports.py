"""Summary, table, picture and page from made-up runs."""

import json

from vllm_kairos.demo.answers import AnswerCheck
from vllm_kairos.demo.client import Sample
from vllm_kairos.demo.figures import Transfers
from vllm_kairos.demo.load import LoadSettings
from vllm_kairos.demo.plot import draw
from vllm_kairos.demo.report import render
from vllm_kairos.demo.run import POLICIES, DemoResult, DemoSettings, PolicyRun
from vllm_kairos.demo.summary import make_summary, table_rows

ENVIRONMENT = {"model": "tiny <&>", "hardware": "a CPU", "vllm_version": "0.32.0", "kairos_version": "0.1.0"}


def _run(policy: str, repeat: int, ttft_s: float) -> PolicyRun:
    sample = Sample(due_s=1.0, prompt_tokens=9, wanted_tokens=2, token_times_s=(ttft_s, ttft_s + 0.1))
    transfers = Transfers(pulls=1, pulled_bytes=2_000_000, skipped=0, skipped_bytes=0)
    return PolicyRun(policy=policy, repeat=repeat, samples=(sample,), records=(), transfers=transfers)


def _result(answers: AnswerCheck | None) -> DemoResult:
    ttfts_s = {"never": (4.0, 6.0, 5.0), "kairos": (2.0, 1.0, 3.0)}
    runs = [_run(policy, repeat, ttfts_s[policy][repeat]) for repeat in range(3) for policy in POLICIES]
    unloaded = (Sample(due_s=0.0, prompt_tokens=9, wanted_tokens=1, token_times_s=(1.0,)),)
    return DemoResult(
        settings=DemoSettings(load=LoadSettings(rate_per_s=1.0), repeats=3),
        unloaded=unloaded,
        runs=tuple(runs),
        answers=answers,
    )


def test_the_summary_takes_medians_over_the_repeats() -> None:
    summary = make_summary(_result(None), ENVIRONMENT)
    assert summary["policies"]["never"]["ttft_s"]["p95"] == 5.0
    assert summary["policies"]["kairos"]["ttft_s"]["p95"] == 2.0
    assert summary["comparison"] == {"plain_p95_ttft_over_unloaded": 5.0, "deflection_p95_ttft_over_plain": 0.4}
    assert len(summary["runs"]) == 6
    json.dumps(summary, allow_nan=False)


def test_the_table_names_every_figure_with_its_unit() -> None:
    rows = {row[0]: row[1:] for row in table_rows(make_summary(_result(None), ENVIRONMENT))}
    assert rows["TTFT p95, ms"] == ("5,000", "2,000")
    assert rows["KV MB moved"] == ("2.0", "2.0")
    assert rows["TTFT prediction error, deflected"] == ("-", "-")


def test_the_page_needs_no_other_file() -> None:
    result = _result(AnswerCheck(prompts=9, paths=6, identical=9))
    page = render(make_summary(result, ENVIRONMENT), draw(result))
    assert "9 of 9 prompts gave the same tokens" in page
    assert "tiny &lt;&amp;&gt;" in page
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("data:", "")
