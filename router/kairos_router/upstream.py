"""One HTTP request to one vLLM server, and the ways in which it can fail.

Upstream is a Protocol so that the router's flow is tested without a network; http_upstream.py has the real one.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from kairos_router.failures import Failure
from vllm_kairos.errors import KairosError


class ServerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A server's complete answer, kept to be passed on."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class UpstreamFailure(KairosError):
    """A request to a server did not bring a good answer to its end; `answer` is what the client may be given."""

    def __init__(self, failure: Failure, detail: str, answer: ServerAnswer | None = None) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.answer = answer


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it goes out."""

    url: str
    headers: Mapping[str, str]
    body: bytes = b""
    method: str = "POST"


class Answer(Protocol):
    """A server's answer whose body has not been read yet."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Response headers."""

    @property
    def ended(self) -> bool:
        """The whole body has come: what `part` has not returned, it will return without waiting."""

    async def part(self) -> bytes:
        """Return what has come of the body since the last part, b"" at its end; raises UpstreamFailure(BROKEN)."""

    async def read(self) -> bytes:
        """Return the whole body; raises UpstreamFailure(BROKEN)."""


class Upstream(Protocol):
    """Sends calls; leaving the context before the body's end closes the connection, which cancels the call there."""

    def send(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """Open a call; raises UpstreamFailure (REFUSED, RESET)."""
