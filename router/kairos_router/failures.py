"""The failure rules, in one place: what went wrong on which leg, and what the router does about it.

docs/failure-rules.md is the prose of this table; a test keeps the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from vllm_kairos.wire.refusal import LEASE_GONE_STATUS, refusal_reason


class Leg(StrEnum):
    """Which server a request to it serves; also the `leg` label of the metrics."""

    PREFILL = "prefill"
    DECODE = "decode"


class Failure(StrEnum):
    """What went wrong; also the `error_type` label of the metrics."""

    REFUSED = "refused"  # no connection: nothing was sent
    RESET = "reset"  # connection lost before the first byte of an answer
    BROKEN = "broken"  # connection lost after it
    UNAVAILABLE = "unavailable"  # 502, 503, 504
    SERVER_ERROR = "server-error"  # any other 5xx
    KV_LEG_ERROR = "kv-leg-error"  # the same, of a decode leg that was to pull KV: the pull may have failed
    CLIENT_ERROR = "client-error"  # 4xx
    MODEL_MISSING = "model-missing"  # 404: this server does not have the model or adapter
    REWRITE_REFUSED = "rewrite-refused"  # 4xx to a prefill leg from which an output constraint was dropped
    FAULTY_ANSWER = "faulty-answer"  # 200 with an error object, an abort, or no handle
    HANDLE_EXPIRED = "handle-expired"  # older than the KV lease less its margin
    ENGINE_RESTARTED = "engine-restarted"  # the engine that holds the KV is gone
    LEASE_GONE = "lease-gone"  # the server did not begin with it: its lease is used up, over or revoked


class Action(StrEnum):
    """What the router does about it."""

    RETRY = "retry"  # decide again with this server left out; bounded, with backoff
    DEFLECT = "deflect"  # no prefill server again; a decode server runs it whole as --prefill-unavailable allows
    DECODE_ONLY = "decode-only"  # only a decode server can serve it: run it there whole
    ANSWER = "answer"  # give the client the server's own answer
    END_STREAM = "end-stream"  # an SSE error event and close, or an aborted body
    OTHER_PAIR = "other-pair"  # decide again, once, and avoid this pair of servers for a while; then answer
    PREFILL_AGAIN = "prefill-again"  # decide again; no server is left out
    TAKE_PREFILL = "take-prefill"  # no lease again: the prefill path, else what --prefill-unavailable allows


class Fate(StrEnum):
    """What became of the KV handle that a failed decode leg was to pull."""

    USABLE = "usable"  # never sent: another decode server may have it
    UNKNOWN = "unknown"  # it may or may not have been used: nobody else gets it, P is told to free the KV
    SPENT = "spent"  # the decode server has had it and tells P itself, or there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    action: Action
    node_fault: bool  # counts against the server's circuit breaker
    handle: Fate = Fate.SPENT


_RULES: Mapping[tuple[Leg, Failure], Rule] = {
    (Leg.PREFILL, Failure.REFUSED): Rule(action=Action.RETRY, node_fault=True),
    (Leg.PREFILL, Failure.RESET): Rule(action=Action.RETRY, node_fault=True),
    (Leg.PREFILL, Failure.BROKEN): Rule(action=Action.RETRY, node_fault=True),
    (Leg.PREFILL, Failure.UNAVAILABLE): Rule(action=Action.RETRY, node_fault=True),
    (Leg.PREFILL, Failure.SERVER_ERROR): Rule(action=Action.DEFLECT, node_fault=True),
    (Leg.PREFILL, Failure.CLIENT_ERROR): Rule(action=Action.ANSWER, node_fault=False),
    (Leg.PREFILL, Failure.MODEL_MISSING): Rule(action=Action.DECODE_ONLY, node_fault=False),
    (Leg.PREFILL, Failure.REWRITE_REFUSED): Rule(action=Action.DECODE_ONLY, node_fault=False),
    (Leg.PREFILL, Failure.FAULTY_ANSWER): Rule(action=Action.DEFLECT, node_fault=True),
    (Leg.DECODE, Failure.REFUSED): Rule(action=Action.RETRY, node_fault=True, handle=Fate.USABLE),
    (Leg.DECODE, Failure.RESET): Rule(action=Action.RETRY, node_fault=True, handle=Fate.UNKNOWN),
    (Leg.DECODE, Failure.BROKEN): Rule(action=Action.END_STREAM, node_fault=True),
    (Leg.DECODE, Failure.UNAVAILABLE): Rule(action=Action.RETRY, node_fault=True, handle=Fate.UNKNOWN),
    (Leg.DECODE, Failure.SERVER_ERROR): Rule(action=Action.ANSWER, node_fault=True),
    (Leg.DECODE, Failure.KV_LEG_ERROR): Rule(action=Action.OTHER_PAIR, node_fault=True),
    (Leg.DECODE, Failure.CLIENT_ERROR): Rule(action=Action.ANSWER, node_fault=False),
    (Leg.DECODE, Failure.MODEL_MISSING): Rule(action=Action.ANSWER, node_fault=False),
    (Leg.DECODE, Failure.FAULTY_ANSWER): Rule(action=Action.ANSWER, node_fault=True),
    (Leg.DECODE, Failure.HANDLE_EXPIRED): Rule(action=Action.PREFILL_AGAIN, node_fault=False),
    (Leg.DECODE, Failure.ENGINE_RESTARTED): Rule(action=Action.PREFILL_AGAIN, node_fault=False),
    (Leg.DECODE, Failure.LEASE_GONE): Rule(action=Action.TAKE_PREFILL, node_fault=False),
}

_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})


def rule(leg: Leg, failure: Failure) -> Rule:
    """Return the rule for `failure` on `leg`."""
    return _RULES[leg, failure]


def rules() -> Mapping[tuple[Leg, Failure], Rule]:
    """The whole table, for documentation and tests."""
    return _RULES


def of_refusal(status: int, message: str) -> str | None:
    """Why a server did not admit a request under its lease, None where its error says something else."""
    return refusal_reason(message) if status == LEASE_GONE_STATUS else None


def of_status(status: int, *, leg: Leg, rewritten: bool = False) -> Failure | None:
    """Classify an answer's status, None for success. `rewritten`: the leg lacks a constraint that the client sent."""
    if status < 400:
        return None
    if status in _UNAVAILABLE_STATUSES:
        return Failure.UNAVAILABLE
    if status >= 500:
        return Failure.SERVER_ERROR
    if status == 404:
        return Failure.MODEL_MISSING
    if rewritten and leg is Leg.PREFILL:
        return Failure.REWRITE_REFUSED
    return Failure.CLIENT_ERROR
