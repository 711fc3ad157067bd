"""What a cell's file says of its requests: pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.serving.failing.recovery import recovery
from benchmarks.serving.failing.scenarios import Scenario
from benchmarks.serving.failing.verdict import Judged, Verdict


def summary(judged: Sequence[Judged], scenario: Scenario, moments: Mapping[str, float]) -> dict[str, Any]:
    """Counts by verdict, recovery, and what happened when."""
    fault_s = moments["fault"]
    counts = Counter(one.verdict for one in judged)
    back_s = moments.get("healthy")
    return {
        "requests": len(judged),
        "verdicts": {verdict: counts[verdict] for verdict in Verdict},
        "errors": dict(sorted(Counter(one.sample.error for one in judged if one.sample.error).items())),
        "examples": _examples(judged),
        "under_way": sum(one.sample.sent_s < fault_s <= one.sample.ended_s for one in judged),
        "under_way_failed": sum(
            one.verdict is not Verdict.RIGHT and one.sample.sent_s < fault_s <= one.sample.ended_s for one in judged
        ),
        "failed_before": sum(one.verdict is not Verdict.RIGHT and one.sample.ended_s < fault_s for one in judged),
        "failed_after_return": None
        if back_s is None
        else sum(one.verdict is not Verdict.RIGHT and one.due_s >= back_s for one in judged),
        "recovery": asdict(recovery(judged, fault_s=fault_s, until_s=scenario.judged_until_s)),
        "moments_s": dict(moments),
        "each": [[round(one.due_s, 3), one.sample.ttft_s, one.verdict] for one in judged],
    }


def _examples(judged: Sequence[Judged]) -> dict[str, str]:
    """One text of each kind of error."""
    found: dict[str, str] = {}
    for one in judged:
        if one.sample.error:
            found.setdefault(one.sample.error, one.sample.detail[:200])
    return dict(sorted(found.items()))
