"""Opens a request's story and closes it: one access-log line, one set of counters, whatever happened."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from kairos_router import tracing
from kairos_router.access_log import AccessLog, AccessRecord
from kairos_router.failures import Leg
from kairos_router.job import Story
from kairos_router.metrics import RouterMetrics
from kairos_router.tracing import Attributes, Tracer
from vllm_kairos.core.decision import Assign, Reject

CLIENT_GONE = 499
"""The status logged for a client that left before its answer ended."""

_NO_HEADERS: Mapping[str, str] = {}
_SERVER_FAULT = 500


class Ledger:
    """`clock` is monotonic; `now` is the time of day."""

    def __init__(
        self,
        *,
        metrics: RouterMetrics,
        access_log: AccessLog,
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        tracer: Tracer | None = None,
    ) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._clock = clock
        self._now = now
        self._tracer = tracer

    def open(self, path: str, request_id: str, *, method: str = "POST", headers: Mapping[str, str] = _NO_HEADERS) -> Story:
        """Begin the story of one request; `path` is a route template, never a client's raw path."""
        self._metrics.request_started(path)
        story = Story(path=path, request_id=request_id, received_at_s=self._clock())
        if self._tracer is not None:
            said = {"http.request.method": method, "http.route": path, "kairos.request_id": request_id}
            story.span = self._tracer.request(f"{method} {path}", headers, said)
        return story

    def close(self, story: Story, status: int) -> None:
        """End it."""
        duration_s = self._clock() - story.received_at_s
        route = story.decision.route if isinstance(story.decision, Assign) else None
        self._metrics.request_finished(story.path, status, route, duration_s)
        self._access_log.write(_record(story, status, duration_s, self._now() - timedelta(seconds=duration_s)))
        if story.span is not None:
            story.span.end(_traced(story, status), story.error if status >= _SERVER_FAULT else "")


def _traced(story: Story, status: int) -> Attributes:
    said = {
        "http.response.status_code": status,
        "gen_ai.request.model": story.model or None,
        "gen_ai.usage.input_tokens": None if story.usage is None else story.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": None if story.usage is None else story.usage.completion_tokens,
        "kairos.prompt_tokens": story.prompt_tokens,
        "kairos.ttft_s": None if story.first_text_at_s is None else story.first_text_at_s - story.received_at_s,
        "kairos.retries": story.retries,
        "error.type": story.error or None,
    }
    return {**tracing.of_decision(story.decision), **{name: value for name, value in said.items() if value is not None}}


def _record(story: Story, status: int, duration_s: float, arrived: datetime) -> AccessRecord:
    decision = story.decision
    return AccessRecord(
        time=arrived.isoformat(timespec="milliseconds"),
        request_id=story.request_id,
        endpoint=story.path,
        status=status,
        duration_s=round(duration_s, 6),
        model=story.model,
        stream=story.streamed,
        prompt_tokens=story.prompt_tokens,
        prompt_tokens_exact=story.prompt_tokens_exact,
        completion_tokens=None if story.usage is None else story.usage.completion_tokens,
        ttft_s=None if story.first_text_at_s is None else story.first_text_at_s - story.received_at_s,
        prefill_leg_s=story.leg_s.get(Leg.PREFILL),
        decode_leg_s=story.leg_s.get(Leg.DECODE),
        retries=story.retries,
        lease_gone=story.lease_gone,
        error=story.error,
        **_decided(decision),  # type: ignore[arg-type]
    )


def _decided(decision: Assign | Reject | None) -> dict[str, object]:
    if decision is None:
        return {}
    if isinstance(decision, Reject):
        return {"decision": "reject", "reason": str(decision.reason)}
    return {
        "decision": str(decision.route),
        "reason": str(decision.reason),
        "prefill_node": decision.prefill_node,
        "decode_node": decision.decode_node,
        "predicted_remote_ttft_s": decision.remote_ttft_s,
        "predicted_local_ttft_s": decision.local_ttft_s,
        "in_fitted_range": decision.in_fitted_range,
        "state_age_s": decision.state_age_s,
        "chunk_steps": None if decision.schedule is None else decision.schedule.steps,
    }
