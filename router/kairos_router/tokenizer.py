"""Exact prompt tokens from a model's own directory: tokenizer.json and its chat template."""

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from vllm_kairos.errors import ConfigError


class PromptTokenizer(Protocol):
    """Counts a request's prompt tokens; slow for long prompts, so called in a thread for them."""

    def count(self, endpoint: str, body: Mapping[str, Any]) -> int | None:
        """Return the count, None where this endpoint or prompt cannot be counted exactly."""


class ModelTokenizer:
    """The tokenizer and chat template of one model directory."""

    def __init__(self, tokenizer: Tokenizer, template: Template | None, special_tokens: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._special = special_tokens

    def count(self, endpoint: str, body: Mapping[str, Any]) -> int | None:
        if endpoint.endswith("/chat/completions"):
            text = self._render(body)
            return None if text is None else self._length(text, special=False)
        prompt = body.get("prompt") if endpoint.endswith("/completions") else None
        if not isinstance(prompt, str):
            return None
        return self._length(prompt, special=body.get("add_special_tokens") is not False)

    def _length(self, text: str, *, special: bool) -> int:
        # `encode` keeps the GIL, which would stop the event loop for as long; the batch call lets it go.
        return len(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0])

    def _render(self, body: Mapping[str, Any]) -> str | None:
        messages = body.get("messages")
        if self._template is None or not isinstance(messages, list) or body.get("chat_template"):
            return None
        extra = body.get("chat_template_kwargs")
        variables = {
            "messages": [_flat(message) for message in messages],
            "tools": body.get("tools"),
            "add_generation_prompt": body.get("add_generation_prompt", True),
            **self._special,
            **(extra if isinstance(extra, dict) else {}),
        }
        if any(message is None for message in variables["messages"]):
            return None
        try:
            return self._template.render(variables)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
            return None  # the server says what is wrong with the messages


def load_tokenizer(directory: Path) -> ModelTokenizer:
    """Read a model directory; raises ConfigError naming what is missing or broken there."""
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"--tokenizer must be a directory with tokenizer.json, got {str(directory)!r}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(f"--tokenizer {file} must be a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    settings = _settings(directory / "tokenizer_config.json")
    special = {name: text for name in _SPECIAL if (text := _text(settings.get(name))) is not None}
    return ModelTokenizer(tokenizer, _template(directory, settings), special)


_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def _settings(file: Path) -> Mapping[str, Any]:
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--tokenizer {file} must be JSON: {error}") from error
    return settings if isinstance(settings, dict) else {}


def _template(directory: Path, settings: Mapping[str, Any]) -> Template | None:
    file = directory / "chat_template.jinja"
    source = _read(file) if file.is_file() else settings.get("chat_template")
    if isinstance(source, list):
        source = next(
            (each.get("template") for each in source if isinstance(each, dict) and each.get("name") == "default"), None
        )
    if not isinstance(source, str):
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ConfigError(f"--tokenizer {directory}: the chat template must be Jinja: {error}") from error


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tokenizer {file} must be readable UTF-8 text: {error}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _flat(message: Any) -> dict[str, Any] | None:
    """Join a message's text parts, as vLLM does for templates that take strings; None: not only text."""
    if not isinstance(message, dict):
        return None
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [part for part in content if isinstance(part, dict) and part.get("type") in ("text", "input_text")]
    texts = [text for part in parts if isinstance(text := part.get("text"), str)]
    if len(texts) != len(content):
        return None
    return {**message, "content": "\n".join(texts)}
