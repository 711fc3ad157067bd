"""Agentic coding sessions: one session per line, each a closed loop of requests with recorded think times.

Sessions have no common clock, so their starts are drawn. Within one, a request waits for the session's previous one;
a subagent's requests are a chain of their own beside it, that starts from the request running or done when it began.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from vllm_kairos.workload.arrivals import arrival_times_s
from vllm_kairos.workload.formats.trace_format import (
    LoadOptions,
    TraceFormat,
    fitting_hashes,
    needed_rate_rps,
    output_tokens,
    some_rows,
)
from vllm_kairos.workload.remarks import Remarks
from vllm_kairos.workload.request import TraceRequest, Workload
from vllm_kairos.workload.source import Record, Source

_MAIN_AGENT = 0


def _matches(first: Record) -> bool:
    return {"requests", "block_size"} <= set(first.values)


def _read(source: Source, options: LoadOptions, remarks: Remarks) -> Workload:
    rate_rps = needed_rate_rps(source, options, "sessions")
    sessions = [session for record in source.json_records() if (session := _session(record)).turns]
    some_rows(source, sessions)
    starts_s = arrival_times_s(len(sessions), rate_rps=rate_rps, scv=options.scv, rng=Random(f"{options.seed}/sessions"))
    bases = accumulate((session.id_span for session in sessions), initial=0)
    requests = [
        request
        for session, start_s, base in zip(sessions, starts_s, bases, strict=False)
        for request in session.requests(start_s, base, options.closed_loop, remarks)
    ]
    ordered = Workload.in_time_order(source.name, requests)
    return Workload(name=source.name, requests=ordered.requests[: options.limit])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """One request of a session: when it was sent, in seconds from the session's start, and which turn it waits for."""

    record: Record
    sent_s: float
    after: int | None
    think_s: float

    @property
    def ended_s(self) -> float:
        return self.sent_s + (self.record.number("api_time") if self.record.has("api_time") else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    name: str
    block_tokens: int
    id_span: int
    """How far the next session's block ids move, that they do not meet this one's; 0 when sessions share their ids."""
    turns: list[_Turn]
    """In the order they were sent."""

    def requests(self, start_s: float, base: int, closed_loop: bool, remarks: Remarks) -> Iterator[TraceRequest]:
        renamed: dict[int, int] = {}  # one object per id: a session repeats its ids in every turn
        for index, turn in enumerate(self.turns):
            prompt_tokens = turn.record.integer("in", least=1)
            whole_blocks = prompt_tokens // self.block_tokens
            hashes = fitting_hashes(turn.record, "hash_ids", prompt_tokens, whole_blocks, remarks)
            waits = closed_loop and turn.after is not None
            yield TraceRequest(
                request_id=f"{self.name}/{index}",
                arrival_s=start_s if closed_loop else start_s + turn.sent_s,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens(turn.record, "out", remarks),
                block_hashes=tuple(renamed.setdefault(block, base + block) for block in hashes),
                block_tokens=self.block_tokens if hashes else 0,
                session_id=self.name,
                after=f"{self.name}/{turn.after}" if waits else "",
                think_s=turn.think_s if waits else 0.0,
            )


def _session(record: Record) -> _Session:
    turns = _turns(record)
    own_ids = record.values.get("hash_id_scope", "local") == "local"
    highest = max(
        (max(turn.record.integers("hash_ids"), default=-1) for turn in turns if turn.record.has("hash_ids")), default=-1
    )
    return _Session(
        name=record.text("id"),
        block_tokens=record.integer("block_size", least=1),
        id_span=highest + 1 if own_ids else 0,
        turns=turns,
    )


def _turns(session: Record) -> list[_Turn]:
    turns: list[_Turn] = []
    latest: dict[int, int] = {}
    for sent_s, agent, record in sorted(_sent(session), key=lambda item: item[0]):
        after = latest.get(agent, latest.get(_MAIN_AGENT))
        goes_on = agent in latest and record.has("think_time")
        waited_s = max(0.0, sent_s - turns[after].ended_s) if after is not None else 0.0
        think_s = record.number("think_time") if goes_on else waited_s
        latest[agent] = len(turns)
        turns.append(_Turn(record=record, sent_s=sent_s, after=after, think_s=think_s))
    return turns


def _sent(session: Record) -> Iterator[tuple[float, int, Record]]:
    """Every request with its time from the session's start and the number of the agent that sent it."""
    for number, entry in enumerate(session.inners("requests"), start=1):
        started_s = entry.number("t")
        if entry.values.get("type") != "subagent":
            yield started_s, _MAIN_AGENT, entry
            continue
        for record in entry.inners("requests"):
            yield started_s + record.number("t"), number, record


FORMAT = TraceFormat(
    name="claude-code",
    columns="JSON lines, a session each, with id, block_size, requests of t, in, out, hash_ids, think_time",
    matches=_matches,
    read=_read,
    draws_arrivals=True,
)
