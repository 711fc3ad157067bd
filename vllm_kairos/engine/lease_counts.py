"""What became of leases, counted since boot, and how the engine core tells the API server."""

import atexit
import threading
from pathlib import Path
from typing import Any

import msgspec

from vllm_kairos.core.lease import LeaseGone, Turned
from vllm_kairos.engine import compat
from vllm_kairos.engine.lease_settings import EngineLeaseSettings
from vllm_kairos.engine.shared_file import read_own, replace_file, shared_path

NO_CAPACITY = "no-capacity"
"""Why a lease is taken back where a fresh look at the node finds nothing to grant."""
_PERIOD_S = 0.5
_CLOSE_TIMEOUT_S = 2.0

logger = compat.init_logger("vllm.kairos.leases")


class LeaseCounts(msgspec.Struct, kw_only=True):
    """`refused` and `revoked` are by reason."""

    granted: int = 0  # epochs
    admitted: int = 0  # requests
    admitted_tokens: int = 0  # of their prompts
    refused: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(map(str, LeaseGone), 0))
    revoked: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys((*map(str, Turned), NO_CAPACITY), 0))


_DECODER = msgspec.json.Decoder(LeaseCounts)


def counts_path(vllm_config: Any, settings: EngineLeaseSettings, dp_rank: int) -> Path:
    """Where the counts of one data-parallel rank are."""
    return shared_path(vllm_config, "leases", settings.totals_file, dp_rank)


def read_counts(path: Path) -> LeaseCounts | None:
    """What the engine last wrote; None before it did, or where the file is not ours to trust."""
    data = read_own(path)
    try:
        return None if data is None else _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class CountsWriter:
    """Writes counts where they changed, twice a second, from a thread of its own; takes the file away when closed."""

    def __init__(self, counts: LeaseCounts, path: Path, *, period_s: float = _PERIOD_S) -> None:
        self._counts, self._path, self._period_s = counts, path, period_s
        self._written = b""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kairos-leases", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # vLLM's engine core does not shut its scheduler down on every way out

    def close(self) -> None:
        """Safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self.close)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._closed.wait(self._period_s):
                self._write(msgspec.json.encode(self._counts))
        except OSError as error:
            logger.warning("Lease counts do not reach /metrics: %s: %s", self._path, error.strerror)
        self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        if data != self._written:
            replace_file(self._path, data)
            self._written = data
