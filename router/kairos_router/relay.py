"""Passes a decode server's answer to the client, streamed or whole, and keeps the account of its tokens."""

from collections.abc import Awaitable, Callable, Mapping

from kairos_router import answers, failures, headers
from kairos_router.failures import Failure, Leg
from kairos_router.job import Sink, Story
from kairos_router.sse import StreamScanner
from kairos_router.upstream import Answer, ServerAnswer, UpstreamFailure

_FAULTY_STATUS = 502
"""What the client gets for a 200 whose body is an error object."""


class Relay:
    """`on_text` is called at each event that brings text, the first time included."""

    def __init__(self, story: Story, sink: Sink, extra_headers: Mapping[str, str], on_text: Callable[[], None]) -> None:
        self._story = story
        self._sink = sink
        self._extra = extra_headers
        self._on_text = on_text

    async def pass_on(self, answer: Answer) -> None:
        """Send the whole answer. Raises UpstreamFailure: BROKEN when it does not reach its end, FAULTY_ANSWER."""
        send: Callable[[Answer], Awaitable[None]] = self._stream if is_stream(answer.headers) else self._whole
        await send(answer)

    async def _stream(self, answer: Answer) -> None:
        scanner = StreamScanner()
        self._story.streamed = True
        last = b""  # goes out with the end of the body
        try:
            while chunk := await answer.part():
                seen = scanner.text_events
                last = scanner.feed(chunk)
                self._check_head(scanner)
                if not answer.ended:
                    await self._write(answer, last)
                    self._story.answered, last = scanner.complete, b""
                if scanner.text_events > seen:
                    self._on_text()
            last += scanner.finish()
        finally:
            self._story.usage = scanner.usage
        if not scanner.complete:
            await self._write(answer, last)
            raise UpstreamFailure(Failure.BROKEN, "stream ended without a finish reason")
        await self._start(answer)
        await self._sink.finish(last)
        self._story.answered = True
        self._story.error = "" if scanner.error is None else "error-in-stream"

    def _check_head(self, scanner: StreamScanner) -> None:
        """An error before any byte went out is a failed leg, not a stream: it can still be a status, or be retried."""
        if self._sink.started or scanner.error is None:
            return
        status = answers.error_status(scanner.error)
        kept = ServerAnswer(status=status, headers={"content-type": "application/json"}, body=scanner.error)
        raise failure_of(kept, "error event at the head of a stream")

    async def _write(self, answer: Answer, data: bytes) -> None:
        if data:
            await self._start(answer)
            await self._sink.write(data)

    async def _start(self, answer: Answer) -> None:
        if not self._sink.started:
            await self._sink.start(answer.status, self._headers(answer))

    async def _whole(self, answer: Answer) -> None:
        body = answers.strip_kv_params(await answer.read())
        said = answers.read_whole(body)
        self._story.usage = said.usage
        if said.is_error:
            kept = ServerAnswer(status=_FAULTY_STATUS, headers=answer.headers, body=body)
            raise UpstreamFailure(Failure.FAULTY_ANSWER, "error object in a 200", kept)
        await self._sink.whole(answer.status, self._headers(answer), body)
        self._story.error = ""

    def _headers(self, answer: Answer) -> dict[str, str]:
        return {**headers.client_headers(answer.headers, request_id=self._story.request_id), **self._extra}


def failure_of(error: ServerAnswer, detail: str) -> UpstreamFailure:
    """What a decode server's error, before any byte went to the client, says went wrong."""
    refusal = failures.of_refusal(error.status, answers.error_message(error.body))
    if refusal is not None:
        return UpstreamFailure(Failure.LEASE_GONE, refusal, error)
    failure = failures.of_status(error.status, leg=Leg.DECODE) or Failure.SERVER_ERROR
    return UpstreamFailure(failure, detail, error)


def is_stream(answered: Mapping[str, str]) -> bool:
    """Say whether an answer is an event stream."""
    return answered.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
