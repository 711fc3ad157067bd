"""Prompt tokens from text size, corrected by what servers report. Pure but for the running means.

Factor: at the first guess, texts in English or code are estimated within a factor of 2 and scripts of
three UTF-8 bytes a character within a factor of 4 (tokenizers differ that much there); after some
reports of similar prompts, within 1.5. Images and other items count as a fixed number until learned.
"""

from dataclasses import dataclass, field

import msgspec

from kairos_router.prompt_parts import PromptParts

FIRST_ITEM_TOKENS = 576
"""First guess for one image: 24 x 24 patches."""
MESSAGE_TOKENS = 5
"""Tokens that a chat template adds to a message, roughly."""

_WIDE_SHARE = 0.3  # share of non-ASCII bytes from which a text counts as wide
_BYTES_PER_TOKEN = (0.5, 16.0)
_ITEM_TOKENS = (1.0, 32768.0)
_PRIOR_TOKENS = 500.0
_MAX_SAMPLE_TOKENS = 2000.0  # one huge prompt does not outvote all others
_MIN_SAMPLE_BYTES = 200  # below, the template's own tokens decide
_KEEP = 0.98


class TextSize(msgspec.Struct, frozen=True, kw_only=True):
    """How large a prompt is before anyone counted its tokens."""

    utf8_bytes: int
    wide: bool  # mostly outside ASCII
    ids: int
    items: int
    messages: int


def measure(parts: PromptParts) -> TextSize:
    """Measure in one pass; ASCII texts cost nothing per character."""
    total = beyond = 0  # a character of UTF-8 length w >= 2 carries w bytes; every byte beyond one marks non-ASCII
    for text in parts.texts:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        total += size
        beyond += size - len(text)
    return TextSize(
        utf8_bytes=total,
        wide=beyond > total * _WIDE_SHARE,
        ids=parts.ids,
        items=parts.items,
        messages=parts.messages,
    )


@dataclass(slots=True)
class _Ratio:
    """A decaying ratio of sums: bytes to tokens."""

    utf8_bytes: float
    tokens: float

    @property
    def bytes_per_token(self) -> float:
        return _clamp(self.utf8_bytes / self.tokens, _BYTES_PER_TOKEN)

    def learn(self, utf8_bytes: float, tokens: float) -> None:
        scale = min(1.0, _MAX_SAMPLE_TOKENS / tokens)
        self.utf8_bytes = self.utf8_bytes * _KEEP + utf8_bytes * scale
        self.tokens = self.tokens * _KEEP + tokens * scale


@dataclass(slots=True)
class TokenEstimate:
    """Two ratios, ASCII and wide text, and the mean tokens of an item."""

    first_bytes_per_token: float = 4.0
    _narrow: _Ratio = field(init=False)
    _wide: _Ratio = field(init=False)
    _item_tokens: float = float(FIRST_ITEM_TOKENS)

    def __post_init__(self) -> None:
        self._narrow = _Ratio(self.first_bytes_per_token * _PRIOR_TOKENS, _PRIOR_TOKENS)
        self._wide = _Ratio(_FIRST_WIDE_BYTES_PER_TOKEN * _PRIOR_TOKENS, _PRIOR_TOKENS)

    def tokens(self, size: TextSize) -> int:
        """Estimate, at least 1."""
        text = size.utf8_bytes / self._ratio(size).bytes_per_token
        return max(1, round(size.ids + text + size.messages * MESSAGE_TOKENS + size.items * self._item_tokens))

    def learn(self, size: TextSize, prompt_tokens: int) -> None:
        """A server counted `prompt_tokens` for a prompt of `size`; counts out of all proportion are ignored."""
        text_tokens = prompt_tokens - size.ids - size.messages * MESSAGE_TOKENS
        if text_tokens < 1:
            return
        if size.items:
            self._learn_items(size, text_tokens)
        elif size.utf8_bytes >= _MIN_SAMPLE_BYTES and _plausible(size.utf8_bytes / text_tokens):
            self._ratio(size).learn(size.utf8_bytes, text_tokens)

    def _learn_items(self, size: TextSize, tokens: int) -> None:
        each = (tokens - size.utf8_bytes / self._ratio(size).bytes_per_token) / size.items
        self._item_tokens += 0.2 * (_clamp(each, _ITEM_TOKENS) - self._item_tokens)

    def _ratio(self, size: TextSize) -> _Ratio:
        return self._wide if size.wide else self._narrow


_FIRST_WIDE_BYTES_PER_TOKEN = 3.0  # about one token a character in CJK scripts


def _plausible(bytes_per_token: float) -> bool:
    low, high = _BYTES_PER_TOKEN
    return low / 2 <= bytes_per_token <= high * 2


def _clamp(value: float, bounds: tuple[float, float]) -> float:
    low, high = bounds
    return min(max(value, low), high)
