"""How long a failure was felt, from what requests due around it saw: pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.serving.failing.verdict import Judged, Verdict

SLOW_FACTOR = 3.0
SETTLE_S = 2.0
"""Requests due before this are not what TTFT was before the failure: connections are new."""
_CALM_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """In seconds from the failure. None: requests still failed, or were slow, just before the stretch ended."""

    ttft_before_s: float | None
    """Median of those due before."""
    failing_s: float | None
    """Until the last request was due that failed."""
    slow_s: float | None
    """Until the last request was due that failed or had a TTFT of more than SLOW_FACTOR times that before."""
    slow_requests: int


def recovery(judged: Sequence[Judged], *, fault_s: float, until_s: float) -> Recovery:
    """What requests due from `fault_s` to `until_s` saw, against those due before."""
    before = [one.sample.ttft_s for one in judged if SETTLE_S <= one.due_s < fault_s and one.verdict is Verdict.RIGHT]
    known = [ttft_s for ttft_s in before if ttft_s is not None]
    usual_s = median(known) if known else None
    after = [one for one in judged if fault_s <= one.due_s < until_s]
    failed = [one.due_s for one in after if one.verdict is not Verdict.RIGHT]
    slow = [one.due_s for one in after if one.verdict is Verdict.RIGHT and usual_s is not None and _is_slow(one, usual_s)]
    return Recovery(
        ttft_before_s=usual_s,
        failing_s=_ended_s(failed, fault_s, until_s),
        slow_s=_ended_s(failed + slow, fault_s, until_s),
        slow_requests=len(slow),
    )


def _is_slow(one: Judged, usual_s: float) -> bool:
    return one.sample.ttft_s is None or one.sample.ttft_s > SLOW_FACTOR * usual_s


def _ended_s(moments_s: Sequence[float], fault_s: float, until_s: float) -> float | None:
    last_s = max(moments_s, default=fault_s)
    return last_s - fault_s if last_s < until_s - _CALM_S else None
