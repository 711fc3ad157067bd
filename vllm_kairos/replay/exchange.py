"""One request on its way: filled by whoever sends it, turned into a sample when it has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vllm_kairos.replay.endpoint import Prepared, decision_of
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.stream import AnswerStream, StreamError


class SendError(Exception):
    """The request did not get a whole answer; `kind` is the error's name in the figures."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What is known so far; times in seconds from the start of the replay."""

    prepared: Prepared
    due_s: float
    sent_s: float
    status: int | None = None
    decision: dict[str, str] = field(default_factory=dict)
    stream: AnswerStream = field(default_factory=AnswerStream)

    def opened(self, status: int, headers: Mapping[str, str]) -> None:
        """The answer's head came."""
        self.status = status
        self.decision = decision_of(headers)

    def sample(self, ended_s: float, failure: StreamError | SendError | None = None) -> Sample:
        """The request as it went, whole or not."""
        stream = self.stream
        return Sample(
            request=self.prepared.request,
            sent_id=self.prepared.sent_id,
            due_s=self.due_s,
            sent_s=self.sent_s,
            ended_s=ended_s,
            arrivals_s=tuple(arrival.at_s for arrival in stream.arrivals),
            arrival_tokens=tuple(arrival.tokens for arrival in stream.arrivals),
            output_tokens=stream.output_tokens,
            prompt_tokens=stream.prompt_tokens,
            cached_tokens=stream.cached_tokens,
            status=self.status,
            finish_reason=stream.finish_reason,
            error="" if failure is None else failure.kind,
            detail="" if failure is None else str(failure),
            decision=self.decision,
        )


class Sender(Protocol):
    """Sends one request and feeds `exchange.stream`; `clock` gives seconds from the start of the replay.

    Returns when the answer has ended whole; raises SendError or StreamError when it did not.
    """

    async def send(self, exchange: Exchange, clock: "Clock") -> None: ...


class Clock(Protocol):
    """Seconds from a moment of its own."""

    def __call__(self) -> float: ...
