"""What a streamed answer says, and when its tokens came; pure: times are given."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from vllm_kairos.replay.sse import EventParser


class StreamError(Exception):
    """The stream is not a whole answer; `kind` is the error's name in the figures."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


_Tokens = Annotated[int, msgspec.Meta(ge=0)]


class _CachedTokens(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _CachedTokens | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None

    @property
    def has_content(self) -> bool:
        return bool(self.content or self.reasoning or self.reasoning_content or self.refusal or self.tool_calls)


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    finish_reason: str | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.text or self.token_ids or (self.delta is not None and self.delta.has_content))


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


@dataclass(slots=True)
class Arrival:
    """A moment at which tokens came, and how many; 0 where the server does not count them chunk by chunk."""

    at_s: float
    tokens: int


@dataclass(slots=True)
class AnswerStream:
    """Takes the bytes of one streamed answer and keeps what matters.

    A chunk brings content when it has text, reasoning, a tool call or token ids, or, where every chunk states its
    usage, when the count of tokens grew: a token may have no text of its own. A role alone is no content. Chunks that
    are read at one moment are one arrival.
    """

    arrivals: list[Arrival] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    is_done: bool = False
    _parser: EventParser = field(default_factory=EventParser)
    _counted: int = 0
    _states_usage: bool = True
    _chunks: int = 0

    def feed(self, received: bytes, at_s: float) -> None:
        """Take bytes that came at `at_s`. Raises StreamError for an error event or what is no event."""
        for event in self._parser.feed(received):
            self._take(event, at_s)

    def close(self, at_s: float) -> None:
        """The answer has ended. Raises StreamError when it ended early."""
        for event in self._parser.close():
            self._take(event, at_s)
        if not self.is_done:
            raise StreamError("truncated", "the stream ended without [DONE]")
        if not self.arrivals:
            raise StreamError("no_tokens", "the stream ended without a token")

    @property
    def output_tokens(self) -> int:
        """Tokens generated: by the server's usage, else one for each chunk with content."""
        return self._chunks if self.completion_tokens is None else self.completion_tokens

    def _take(self, data: bytes, at_s: float) -> None:
        if self.is_done:
            return
        if data.strip() == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _DECODER.decode(data)
        except (msgspec.DecodeError, RecursionError) as failure:
            raise StreamError("malformed", f"{failure}: {data[:80]!r}") from None
        if event.error is not None:
            raise StreamError("error_event", str(event.error)[:200])
        self._take_choices(event, at_s)
        if event.usage is not None:
            self._take_usage(event.usage)

    def _take_choices(self, event: _Event, at_s: float) -> None:
        if not event.choices:
            return
        total = None if event.usage is None else event.usage.completion_tokens
        self._states_usage = self._states_usage and total is not None
        grown = max(0, total - self._counted) if total is not None and self._states_usage else 0
        if grown or any(choice.has_content for choice in event.choices):
            self._arrive(at_s, grown)
        self._counted += grown
        self.finish_reason = event.choices[0].finish_reason or self.finish_reason

    def _arrive(self, at_s: float, tokens: int) -> None:
        self._chunks += 1
        if self.arrivals and self.arrivals[-1].at_s == at_s:
            self.arrivals[-1].tokens += tokens
        else:
            self.arrivals.append(Arrival(at_s, tokens))

    def _take_usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens
