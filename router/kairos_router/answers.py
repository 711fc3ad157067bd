"""What servers answer, pure: the handle in a prefill answer, usage, and fields that clients must not see."""

from collections.abc import Mapping
from typing import Any

import msgspec

from kairos_router.payload import KV_KEY

KV_KEY_BYTES = KV_KEY.encode()
_UNREADABLE = (msgspec.DecodeError, RecursionError)


class TokenDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The `usage` object of an OpenAI answer."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prefix-cache hits as reported, never above the prompt; None where the server reports none."""
        details = self.prompt_tokens_details
        cached = None if details is None else details.cached_tokens
        return None if cached is None else min(cached, self.prompt_tokens)


class _Choice(msgspec.Struct, frozen=True):
    finish_reason: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    kv_transfer_params: dict[str, Any] | None = None
    usage: Usage | None = None
    error: Any = None
    object: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


class PrefillAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A 200 of the prefill leg: a handle, or what is wrong with it."""

    handle: Mapping[str, Any] | None = None
    fault: str = ""
    usage: Usage | None = None

    @property
    def engine_id(self) -> str:
        """The engine that holds the KV, "" when it does not say."""
        engine = (self.handle or {}).get("remote_engine_id")
        return engine if isinstance(engine, str) else ""


def read_prefill(raw: bytes) -> PrefillAnswer:
    """Read a prefill leg's 200; an error object, an abort or a missing handle is a fault, not a success."""
    try:
        answer = _DECODER.decode(raw)
    except _UNREADABLE as error:
        return PrefillAnswer(fault=f"not an answer: {error}")
    if answer.error is not None or answer.object == "error":
        return PrefillAnswer(fault="error object in a 200")
    if any(choice.finish_reason == "abort" for choice in answer.choices):
        return PrefillAnswer(fault="finish_reason abort")
    if not answer.kv_transfer_params:
        return PrefillAnswer(fault="no kv_transfer_params in the answer")
    return PrefillAnswer(handle=answer.kv_transfer_params, usage=answer.usage)


class WholeAnswer(msgspec.Struct, frozen=True):
    """What a 200's JSON body says; nothing of one that is not JSON."""

    usage: Usage | None = None
    is_error: bool = False


def read_whole(raw: bytes) -> WholeAnswer:
    """Read the decode leg's 200 to a request that is not streamed."""
    try:
        answer = _DECODER.decode(raw)
    except _UNREADABLE:
        return WholeAnswer()
    return WholeAnswer(answer.usage, answer.error is not None or answer.object == "error")


def error_status(raw: bytes) -> int:
    """The HTTP status that an error object names, 500 where it names none."""
    try:
        answer = _DECODER.decode(raw)
    except _UNREADABLE:
        return 500
    code = answer.error.get("code") if isinstance(answer.error, dict) else None
    return code if isinstance(code, int) and 400 <= code < 600 else 500


def error_message(raw: bytes) -> str:
    """The text of an error object, "" where it has none."""
    try:
        answer = _DECODER.decode(raw)
    except _UNREADABLE:
        return ""
    message = answer.error.get("message") if isinstance(answer.error, dict) else None
    return message if isinstance(message, str) else ""


def strip_kv_params(raw: bytes) -> bytes:
    """Drop `kv_transfer_params` from a JSON answer; the same bytes when it has none.

    /v1/responses streams carry the answer one level down, under `response`.
    """
    if KV_KEY_BYTES not in raw:
        return raw
    try:
        body = msgspec.json.decode(raw)
    except _UNREADABLE:
        return raw
    if not isinstance(body, dict):
        return raw
    holders = [holder for holder in (body, body.get("response")) if isinstance(holder, dict) and KV_KEY in holder]
    for holder in holders:
        del holder[KV_KEY]
    return msgspec.json.encode(body) if holders else raw
