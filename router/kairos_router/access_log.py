"""One JSON line per request: what was decided and what became of it; never a prompt, never an engine id."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec


class AccessRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one request at its end; times in seconds, absent where unknown."""

    time: str  # ISO 8601, UTC, when the request arrived
    request_id: str
    endpoint: str
    status: int
    duration_s: float
    model: str = ""
    stream: bool = False
    prompt_tokens: int | None = None
    prompt_tokens_exact: bool | None = None
    completion_tokens: int | None = None
    decision: str = ""  # decode-only, prefill-decode or reject
    reason: str = ""
    prefill_node: str | None = None
    decode_node: str | None = None
    predicted_remote_ttft_s: float | None = None
    predicted_local_ttft_s: float | None = None
    in_fitted_range: bool | None = None
    state_age_s: float | None = None
    chunk_steps: int | None = None
    ttft_s: float | None = None
    prefill_leg_s: float | None = None
    decode_leg_s: float | None = None
    retries: int = 0
    lease_gone: str = ""  # why a decode node did not admit it under its lease
    error: str = ""  # one of our own words, or a one-line detail without the body


class AccessLog:
    """Writes records as JSON lines; lines gather until the loop is idle, so that a burst costs one write."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._stream = stream
        self._encoder = msgspec.json.Encoder()
        self._lines: list[bytes] = []

    def write(self, record: AccessRecord) -> None:
        """Log one request."""
        if self._stream is None:
            return
        self._lines.append(self._encoder.encode(record))
        if len(self._lines) == 1:
            _soon(self.flush)

    def flush(self) -> None:
        """Write what has gathered."""
        if self._stream is None or not self._lines:
            return
        lines, self._lines = self._lines, []
        self._stream.write(b"\n".join(lines) + b"\n")
        self._stream.flush()

    def close(self) -> None:
        """Flush; a file of ours is closed by whoever opened it."""
        self.flush()


def _soon(call: Callable[[], None]) -> None:
    try:
        asyncio.get_running_loop().call_later(_FLUSH_AFTER_S, call)
    except RuntimeError:
        call()


_FLUSH_AFTER_S = 0.05


def open_log(directory: Path) -> IO[bytes]:
    """Open `access.jsonl` in `directory` for appending, creating the directory; raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    return (directory / "access.jsonl").open("ab")
