"""A sender that keeps what was said, and that can be pointed at another router in the midst of a replay."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from vllm_kairos.replay.exchange import Clock, Exchange, Sender, SendError
from vllm_kairos.replay.sse import EventParser
from vllm_kairos.replay.stream import AnswerStream

NOT_SENT = "not_sent"


@dataclass(slots=True)
class Transcript(AnswerStream):
    """An answer stream that keeps its bytes."""

    received: list[bytes] = field(default_factory=list)

    def feed(self, received: bytes, at_s: float) -> None:
        """Take bytes that came at `at_s`. Raises StreamError as AnswerStream does."""
        self.received.append(received)
        AnswerStream.feed(self, received, at_s)


class _Choice(msgspec.Struct):
    text: str = ""


class _Event(msgspec.Struct):
    choices: list[_Choice] = []


_DECODER = msgspec.json.Decoder(_Event)


def words_of(received: bytes) -> list[str]:
    """The words of a streamed completion, whole or not; what is no event with a choice says nothing."""
    return "".join(_text(data) for data in EventParser().feed(received)).split()


def _text(data: bytes) -> str:
    try:
        event = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return ""
    return "".join(choice.text for choice in event.choices)


class RecordingSender:
    """Sends through `target`, to be set first. It may be changed under way: requests stay where they were sent."""

    target: Sender

    def __init__(self) -> None:
        self._transcripts: dict[str, Transcript] = {}
        self._under_way = 0
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def send(self, exchange: Exchange, clock: Clock) -> None:
        """Stream the answer into `exchange`. Raises SendError or StreamError."""
        if self._closed:
            raise SendError(NOT_SENT, "the load had ended")
        exchange.stream = transcript = Transcript()
        self._transcripts[exchange.prepared.sent_id] = transcript
        self._under_way += 1
        self._idle.clear()
        try:
            await self.target.send(exchange, clock)
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def close(self) -> None:
        """Send nothing more, and wait for what is under way."""
        self._closed = True
        await self._idle.wait()

    def words(self, sent_id: str) -> list[str]:
        """What the client was told for this request; nothing where it was never sent."""
        transcript = self._transcripts.get(sent_id)
        return words_of(b"".join(transcript.received)) if transcript else []
