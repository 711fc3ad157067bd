"""Asks the validation URLs whether a client's bearer key is good (--api-key-validation-urls), and remembers.

A URL says yes by answering 2xx to a GET that carries the client's key, no by any other answer below
500; one yes is enough. Keys are remembered as digests, each for a short time, the oldest dropped first.
"""

import asyncio
import hashlib
import hmac
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kairos_router.config import KeyCheckSettings
from kairos_router.refusal import Refusal
from kairos_router.upstream import Call, Upstream, UpstreamFailure

_LOG = logging.getLogger(__name__)
_NO_VERDICT_STATUSES = frozenset({408, 429})  # the URL is busy: it did not say no
_MOST_CHECKS = 64
"""Keys asked about at once; more wait, within the same time limit."""


@dataclass(slots=True)
class ShortMemory:
    """A set whose members are forgotten after `ttl_s`, and the oldest of more than `most` at once."""

    ttl_s: float
    most: int
    _expires_s: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._expires_s)

    def add(self, member: bytes, now_s: float) -> None:
        self._expires_s[member] = now_s + self.ttl_s
        self._expires_s.move_to_end(member)
        if len(self._expires_s) > self.most:
            self._expires_s.popitem(last=False)

    def holds(self, member: bytes, now_s: float) -> bool:
        expires_s = self._expires_s.get(member)
        if expires_s is None:
            return False
        if now_s < expires_s:
            return True
        del self._expires_s[member]
        return False


class KeyCheck:
    """`own_key`: the router's --api-key, which is good without asking; None: none was given."""

    def __init__(
        self, settings: KeyCheckSettings, *, upstream: Upstream, clock: Callable[[], float], own_key: str | None = None
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._clock = clock
        self._own_key = own_key
        self._accepted = ShortMemory(settings.accepted_ttl_s, settings.most_keys)
        self._refused = ShortMemory(settings.refused_ttl_s, settings.most_keys)
        self._asking: dict[bytes, asyncio.Task[bool]] = {}
        self._turns = asyncio.Semaphore(_MOST_CHECKS)

    async def check(self, authorization: str) -> None:
        """Return for a good key; raises Refusal: 401 for a bad or missing one, 503 when no URL could say."""
        key = bearer_key(authorization)
        if not key:
            raise Refusal(401, "unauthorized", "a bearer key must be sent in the Authorization header")
        if self._own_key and hmac.compare_digest(_bytes(key), _bytes(self._own_key)):
            return
        if not sendable(key) or not await self._is_good(key):
            raise Refusal(401, "unauthorized", "the bearer key was refused")

    async def _is_good(self, key: str) -> bool:
        digest, now_s = hashlib.sha256(_bytes(key)).digest(), self._clock()
        if self._accepted.holds(digest, now_s):
            return True
        if self._refused.holds(digest, now_s):
            return False
        if digest not in self._asking:  # requests with one key wait for one answer
            task = self._asking[digest] = asyncio.create_task(self._ask(key, digest))
            task.add_done_callback(lambda done: self._asked(digest, done))
        return await asyncio.shield(self._asking[digest])

    def _asked(self, digest: bytes, done: asyncio.Task[bool]) -> None:
        del self._asking[digest]
        if not done.cancelled():
            done.exception()  # whoever waited has it; nobody may wait any more

    async def _ask(self, key: str, digest: bytes) -> bool:
        verdicts = await self._verdicts(key)
        if True in verdicts:
            self._accepted.add(digest, self._clock())
            return True
        if False not in verdicts:
            raise Refusal(503, "key-check-unavailable", "no URL that validates keys could be reached", retry_after_s=1.0)
        if None not in verdicts:  # else a URL that did not answer may yet know the key
            self._refused.add(digest, self._clock())
        return False

    async def _verdicts(self, key: str) -> list[bool | None]:
        """What the URLs say, up to the first yes; None: no verdict."""
        tasks = [asyncio.create_task(self._verdict(url, key)) for url in self._settings.urls]
        found: list[bool | None] = []
        try:
            for answer in asyncio.as_completed(tasks):
                found.append(await answer)
                if found[-1]:
                    break
        finally:
            for task in tasks:
                task.cancel()
        return found

    async def _verdict(self, url: str, key: str) -> bool | None:
        headers = {"authorization": f"Bearer {key}", "accept": "*/*"}
        call = Call(url=url, headers=headers, method="GET")
        try:
            async with asyncio.timeout(self._settings.timeout_s), self._turns, self._upstream.send(call) as answer:
                return verdict(answer.status)
        except TimeoutError:
            _LOG.warning("%s did not say within %g s whether a key is good", url, self._settings.timeout_s)
        except UpstreamFailure as failure:
            _LOG.warning("%s did not say whether a key is good: %s", url, failure)
        return None


def verdict(status: int) -> bool | None:
    """Read a validation URL's status: True for yes, False for no, None for neither."""
    if 200 <= status < 300:
        return True
    return None if status >= 500 or status in _NO_VERDICT_STATUSES else False


def bearer_key(authorization: str) -> str:
    """The key of a bearer Authorization header, "" when there is none."""
    scheme, _, key = authorization.strip().partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def sendable(key: str) -> bool:
    """Say whether a key fits a header; no key that was ever issued does not."""
    return key.isascii() and key.isprintable()


def _bytes(key: str) -> bytes:
    return key.encode(errors="surrogateescape")
