"""What a trace says of a request. No library is named here: without --enable-trace there is no span and no import."""

from collections.abc import Mapping
from typing import Protocol, Self

from vllm_kairos.core.decision import Assign, Decision

CONTEXT_HEADERS = ("traceparent", "tracestate")
"""W3C Trace Context."""

Attributes = Mapping[str, str | int | float | bool]


class Span(Protocol):
    """One timed piece of work; ended once."""

    def child(self, name: str, attributes: Attributes) -> Self:
        """Begin a call to a server as a part of this span."""

    def carry(self, headers: dict[str, str]) -> None:
        """Make this span the parent of whatever the receiver of `headers` traces."""

    def end(self, attributes: Attributes, error: str = "") -> None:
        """End it, as failed unless `error` is empty."""


class Tracer(Protocol):
    """Begins spans."""

    def request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> Span:
        """Begin a client's request, which continues the trace that `headers` name, if they do."""


def leg_span(request: Span | None, leg: str, worker: str, url: str, *, attempt: int) -> Span | None:
    """Begin the span of one leg to one server; None where the request is not traced."""
    if request is None:
        return None
    said: Attributes = {"kairos.leg": leg, "kairos.worker": worker, "kairos.attempt": attempt, "server.address": url}
    return request.child(leg, said)


def end_leg(span: Span, outcome: str) -> None:
    """End a leg's span; `outcome` is the metrics' word: ok, cancelled, or what failed."""
    failed = outcome not in ("ok", "cancelled")
    said = {"kairos.outcome": outcome, **({"error.type": outcome} if failed else {})}
    span.end(said, outcome if failed else "")


def of_decision(decision: Decision | None) -> dict[str, str | int | float | bool]:
    """The decision as attributes; what it does not say is left out."""
    if decision is None:
        return {}
    if not isinstance(decision, Assign):
        return {"kairos.route": "reject", "kairos.reason": str(decision.reason)}
    said = {
        "kairos.route": str(decision.route),
        "kairos.reason": str(decision.reason),
        "kairos.prefill_node": decision.prefill_node,
        "kairos.decode_node": decision.decode_node,
        "kairos.predicted_ttft_remote_s": decision.remote_ttft_s,
        "kairos.predicted_ttft_local_s": decision.local_ttft_s,
        "kairos.in_fitted_range": decision.in_fitted_range,
        "kairos.chunk_steps": None if decision.schedule is None else decision.schedule.steps,
    }
    return {name: value for name, value in said.items() if value is not None}
