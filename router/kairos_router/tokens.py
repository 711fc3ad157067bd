"""How many tokens a prompt has, without holding up the event loop.

Token ids are counted; text goes through the model's tokenizer where one is configured, long text in a
thread; what is left is estimated from its size (token_estimate.py).
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kairos_router import prompt_parts, token_estimate
from kairos_router.config import TokenSettings
from kairos_router.token_estimate import TextSize, TokenEstimate
from kairos_router.tokenizer import PromptTokenizer

MAX_PENDING = 16
"""Prompts that may wait for the threads; more are estimated."""
MAX_CHARACTERS = 16 * 1024 * 1024
"""A longer prompt is estimated: no model of today takes it."""
_THREADS = 2


class TokenCount(msgspec.Struct, frozen=True):
    """A prompt's tokens; `size` is what an estimate was made from."""

    prompt_tokens: int
    exact: bool
    size: TextSize | None = None


class TokenCounter:
    """Counts prompts and learns from the counts that servers report."""

    def __init__(self, settings: TokenSettings, tokenizer: PromptTokenizer | None = None) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._estimate = TokenEstimate(settings.bytes_per_token)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kairos-tokens") if tokenizer else None
        self._pending = 0

    async def count(self, endpoint: str, body: Mapping[str, Any]) -> TokenCount:
        """Count the prompt in `body`; at least 1."""
        parts = prompt_parts.of_body(endpoint, body)
        if parts.only_ids:
            return TokenCount(parts.ids, exact=True)
        if not parts.items:
            exact = await self._exact(endpoint, body, parts.characters)
            if exact is not None:
                return TokenCount(max(1, exact), exact=True)
        size = token_estimate.measure(parts)
        return TokenCount(self._estimate.tokens(size), exact=False, size=size)

    def learn(self, count: TokenCount, prompt_tokens: int) -> None:
        """A server reported `prompt_tokens` for the prompt that `count` was made of."""
        if count.size is not None:
            self._estimate.learn(count.size, prompt_tokens)

    def close(self) -> None:
        """Stop the threads; running counts are abandoned."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _exact(self, endpoint: str, body: Mapping[str, Any], characters: int) -> int | None:
        if self._tokenizer is None or self._pool is None or characters > MAX_CHARACTERS:
            return None
        if characters <= self._settings.inline_characters:
            return self._tokenizer.count(endpoint, body)
        if self._pending >= MAX_PENDING:
            return None
        self._pending += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._tokenizer.count, endpoint, body)
        finally:
            self._pending -= 1
