"""Dynamo's request traces: one event per line; the ends of requests say what was asked, and when.

In a closed loop a request waits for the one of its session, its parent session or a subagent's that ended last before
it was received, and the time between the two is its think time.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_kairos.workload.formats.trace_format import (
    LoadOptions,
    Timed,
    TraceFormat,
    fitting_hashes,
    on_one_clock,
    output_tokens,
)
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload, blocks_of
from vllm_kairos.workload.source import Record, Source

_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One request as the traced system saw it, in milliseconds of its clock."""

    request: Record
    request_id: str
    session: str
    parent: str
    received_ms: float
    ended_ms: float

    def may_start(self, other: "_Call") -> bool:
        """Whether `other`, by the sessions alone, may have waited for this call."""
        return self.session in (other.session, other.parent) or self.parent == other.session


def _matches(first: Record) -> bool:
    return {"timestamp", "event"} <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    calls = sorted(_calls(source), key=lambda call: call.received_ms)[: options.limit]
    starts_ms: dict[str, float] = {}
    timed: list[Timed] = []
    for index, call in enumerate(calls):
        before = _waited_for(call, calls[:index]) if options.closed_loop else None
        starts_ms[call.request_id] = starts_ms[before.request_id] if before else call.received_ms
        timed.append((starts_ms[call.request_id], _request(call, before, remarks)))
    return on_one_clock(source, timed, _MS_PER_S, remarks)


def _calls(source: Source) -> Iterator[_Call]:
    for record in source.json_records():
        event = record.inner("event")
        if event.values.get("event_type") != "request_end":
            continue
        request, context = event.inner("request"), event.inner("agent_context")
        received_ms = request.number("request_received_ms")
        yield _Call(
            request=request,
            request_id=f"row-{record.row}",
            session=context.text("session_id"),
            parent=context.text("parent_session_id") if context.has("parent_session_id") else "",
            received_ms=received_ms,
            ended_ms=received_ms + request.number("total_time_ms"),
        )


def _waited_for(call: _Call, earlier: list[_Call]) -> _Call | None:
    ended = (other for other in earlier if other.ended_ms <= call.received_ms and other.may_start(call))
    return max(ended, key=lambda other: other.ended_ms, default=None)


def _request(call: _Call, before: _Call | None, remarks: Remarks) -> TraceRequest:
    prompt_tokens = call.request.integer("input_tokens", least=1)
    hashes, block_tokens = _blocks(call.request, prompt_tokens, remarks)
    return TraceRequest(
        request_id=call.request_id,
        arrival_s=0.0,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens(call.request, "output_tokens", remarks),
        block_hashes=hashes,
        block_tokens=block_tokens if hashes else 0,
        session_id=call.session,
        after=before.request_id if before else "",
        think_s=(call.received_ms - before.ended_ms) / _MS_PER_S if before else 0.0,
    )


def _blocks(request: Record, prompt_tokens: int, remarks: Remarks) -> tuple[tuple[int, ...], int]:
    if not request.has("replay"):
        return (), 0
    replay = request.inner("replay")
    block_tokens = replay.integer("trace_block_size", least=1)
    blocks = blocks_of(prompt_tokens, block_tokens)
    return fitting_hashes(replay, "input_sequence_hashes", prompt_tokens, blocks, remarks), block_tokens


FORMAT = TraceFormat(
    name="dynamo-agent",
    columns="JSON lines, an event each, with timestamp, event of event_type, request, agent_context",
    matches=_matches,
    read=_read,
)
