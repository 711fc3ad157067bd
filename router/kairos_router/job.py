"""One client request on its way through the router."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from kairos_router.answers import Usage
from kairos_router.failures import Failure, Leg
from kairos_router.handles import Handle
from kairos_router.payload import ParsedRequest
from kairos_router.tokens import TokenCount
from kairos_router.tracing import Span
from kairos_router.upstream import ServerAnswer
from vllm_kairos.core.decision import Decision
from vllm_kairos.core.shapes import RequestShape
from vllm_kairos.errors import KairosError


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """A client's request as bytes; header names are looked up in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    request_id: str
    method: str = "POST"
    query: str = ""


class Sink(Protocol):
    """Where the client's answer goes: either `whole`, or `start`, `write`... and `finish` or `abort`."""

    @property
    def started(self) -> bool:
        """The client has been sent a status; no other answer can follow."""

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send one complete answer."""

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the head of a streamed answer."""

    async def write(self, data: bytes) -> None:
        """Send a part of it; raises ConnectionError when the client is gone."""

    async def finish(self, last: bytes = b"") -> None:
        """End it cleanly with `last`; raises ConnectionError when that does not reach the client."""

    async def abort(self, last: bytes) -> None:
        """End it so that no client takes it for complete; `last` goes out first where the client can read it."""


@dataclass(slots=True, kw_only=True)
class Story:
    """What became of a request; the access log and the metrics are written from it."""

    path: str
    request_id: str
    received_at_s: float
    model: str = ""
    prompt_tokens: int | None = None
    prompt_tokens_exact: bool | None = None
    decision: Decision | None = None
    first_text_at_s: float | None = None
    last_text_at_s: float | None = None
    streamed: bool = False
    usage: Usage | None = None
    leg_s: dict[Leg, float] = field(default_factory=dict)
    retries: int = 0
    lease_gone: str = ""  # why a decode node did not admit it under its lease, the last time
    answered: bool = False  # the whole answer went out, whatever becomes of the connection afterwards
    error: str = ""
    span: Span | None = None  # None: not traced


class LegFailed(KairosError):
    """One leg failed; failures.py says what follows."""

    def __init__(self, leg: Leg, worker: str, failure: Failure, detail: str, answer: ServerAnswer | None = None) -> None:
        super().__init__(f"{leg} server {worker}: {failure} ({detail})")
        self.told = f"the {leg} server failed: {failure}"  # what a client may know: no host, no engine
        self.leg = leg
        self.worker = worker
        self.failure = failure
        self.detail = detail
        self.answer = answer


@dataclass(slots=True, kw_only=True)
class Job:
    """One request that may take two legs, and what its attempts have taught so far."""

    incoming: Incoming
    request: ParsedRequest
    shape: RequestShape
    story: Story
    count: TokenCount
    unique: str  # never repeats, across restarts too
    attempts: int = 0
    handle: Handle | None = None
    handle_sent: bool = False
    left_out: set[str] = field(default_factory=set)  # workers that failed this request
    prefill_given_up: bool = False  # no prefill server gets another leg of it
    pair_failed: bool = False  # KV did not arrive once
    lease_refused: bool = False  # a decode node did not admit it under its lease once

    @property
    def attempt_id(self) -> str:
        """The id under which the view knows the current attempt."""
        return f"{self.unique}.{self.attempts}"
