"""What of a request's body becomes prompt tokens: ids, text and items such as images. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

_ITEM_TYPES = frozenset(
    {"image_url", "input_image", "image", "image_pil", "image_embeds", "video_url", "audio_url", "input_audio", "input_file"}
)
_TEXT_KEYS = ("text", "content", "input", "output", "arguments", "thinking", "refusal", "reasoning")
_MAX_DEPTH = 12


class PromptParts(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt by kind. `ids` are exact tokens; `texts` need counting; `items` are images and the like."""

    ids: int = 0
    texts: tuple[str, ...] = ()
    items: int = 0
    messages: int = 0  # each adds the chat template's own tokens

    @property
    def only_ids(self) -> bool:
        return not self.texts and not self.items and self.ids > 0

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))


def of_body(endpoint: str, body: Mapping[str, Any]) -> PromptParts:
    """Split the prompt of `body`; an endpoint that is not known here counts all the text it holds."""
    if endpoint.endswith("/chat/completions"):
        return _chat(body, "messages", ("tools",))
    if endpoint.endswith("/messages"):
        return _chat(body, "messages", ("system", "tools"))
    if endpoint.endswith("/responses"):
        return _chat(body, "input", ("instructions", "tools"))
    if endpoint.endswith("/completions"):
        return _of_prompt(body.get("prompt"))
    if endpoint.endswith("/generate"):
        return _of_prompt(body.get("token_ids", body.get("prompt")))
    return _merge(PromptParts(texts=tuple(_texts(body))))


def _of_prompt(prompt: Any) -> PromptParts:
    if isinstance(prompt, str):
        return PromptParts(texts=(prompt,))
    if not isinstance(prompt, list) or not prompt:
        return PromptParts()
    if isinstance(prompt[0], int):
        return PromptParts(ids=len(prompt))
    return _merge(*map(_of_prompt, prompt))


def _chat(body: Mapping[str, Any], key: str, extra: Sequence[str]) -> PromptParts:
    messages = body.get(key)
    if isinstance(messages, str):
        messages = [messages]
    if not isinstance(messages, list):
        messages = []
    parts = [_of_content(message, 0) for message in messages]
    parts.extend(PromptParts(texts=tuple(_texts(body.get(name)))) for name in extra)
    whole = _merge(*parts)
    return PromptParts(ids=whole.ids, texts=whole.texts, items=whole.items, messages=len(messages))


def _of_content(value: Any, depth: int) -> PromptParts:
    if isinstance(value, str):
        return PromptParts(texts=(value,))
    if depth > _MAX_DEPTH:
        return PromptParts()
    if isinstance(value, list):
        return _merge(*(_of_content(each, depth + 1) for each in value))
    if not isinstance(value, dict):
        return PromptParts()
    kind = value.get("type")
    if isinstance(kind, str) and kind in _ITEM_TYPES:
        return PromptParts(items=1)
    inner = [_of_content(value[name], depth + 1) for name in _TEXT_KEYS if name in value]
    inner.extend(PromptParts(texts=tuple(_texts(call))) for call in _listed(value.get("tool_calls")))
    return _merge(*inner)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth > _MAX_DEPTH:
        return
    elif isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from _texts(each, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)


def _merge(*parts: PromptParts) -> PromptParts:
    return PromptParts(
        ids=sum(part.ids for part in parts),
        texts=tuple(text for part in parts for text in part.texts),
        items=sum(part.items for part in parts),
    )
