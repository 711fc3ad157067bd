"""Writes what an engine core counts to the file in which the API server reads it."""

import atexit
import threading
from pathlib import Path
from typing import Any

import msgspec

from vllm_kairos.engine import compat
from vllm_kairos.engine.shared_file import replace_file

_PERIOD_S = 0.5
_CLOSE_TIMEOUT_S = 2.0

logger = compat.init_logger("vllm.kairos.counts")


class CountsWriter:
    """Writes counts where they changed, twice a second, from a thread of its own; takes the file away when closed."""

    def __init__(self, counts: Any, path: Path, *, period_s: float = _PERIOD_S) -> None:
        self._counts, self._path, self._period_s = counts, path, period_s
        self._written = b""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kairos-counts", daemon=True)
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
            logger.warning("Counts do not reach /metrics: %s: %s", self._path, error.strerror)
        self._path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        if data != self._written:
            replace_file(self._path, data)
            self._written = data
