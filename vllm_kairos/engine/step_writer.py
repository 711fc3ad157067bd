"""Writes recorded steps and their counts from a thread of its own, so that no engine step waits for a disk."""

import atexit
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from vllm_kairos.engine import compat
from vllm_kairos.engine.step_totals_file import write_totals
from vllm_kairos.errors import ConfigError
from vllm_kairos.steps.step_file import OLD_SUFFIX, FileHeader, StepLine, encode_line
from vllm_kairos.steps.totals import StepTotals

_PERIOD_S = 0.5
_QUEUED_LINES = 20_000
_CLOSE_TIMEOUT_S = 2.0

logger = compat.init_logger("vllm.kairos.steps")


class StepWriter:
    """Takes lines and writes them, and the counts where they changed, twice a second and when it is closed.

    Lines that a stuck disk leaves no room for are dropped and counted. A file that cannot be written any more
    is given up with one warning; the engine goes on.
    """

    def __init__(
        self, header: FileHeader, totals: StepTotals, totals_path: Path, file: str | None, max_file_bytes: int
    ) -> None:
        self._totals, self._totals_path = totals, totals_path
        self._lines: deque[StepLine] = deque()
        path = None if file is None else Path(file if header.dp_rank == 0 else f"{file}.{header.dp_rank}")
        self._file = None if path is None else BoundedFile(path, encode_line(header), max_file_bytes)
        self._written_steps = -1
        self._writes_totals = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kairos-steps", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # vLLM's engine core does not shut its scheduler down on every way out

    def put(self, line: StepLine) -> None:
        """Take one line; never blocks."""
        if self._file is None:
            return
        if len(self._lines) < _QUEUED_LINES:
            self._lines.append(line)
        else:
            self._totals.dropped_lines += 1

    def close(self) -> None:
        """Write what is left and take the counts' file away; safe to call twice."""
        if self._closed.is_set():
            return
        self._closed.set()
        atexit.unregister(self.close)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(_PERIOD_S)
            self._write_lines()
            if self._writes_totals:
                self._write_totals()
        if self._file is not None:
            self._file.close()
        self._totals_path.unlink(missing_ok=True)

    def _write_lines(self) -> None:
        file = self._file
        if file is None:
            return
        try:
            for _ in range(len(self._lines)):
                file.write(encode_line(self._lines.popleft()))
            file.flush()
        except OSError as error:
            logger.warning("Steps are no longer written to %s: %s", file.path, error.strerror)
            self._file = None
            self._lines.clear()
            with suppress(OSError):
                file.close()

    def _write_totals(self) -> None:
        steps = sum(each.steps for each in self._totals.regimes.values())
        if steps == self._written_steps:
            return
        try:
            write_totals(self._totals, self._totals_path)
            self._written_steps = steps
        except OSError as error:
            logger.warning("Step counts do not reach /metrics: %s: %s", self._totals_path, error.strerror)
            self._writes_totals = False


class BoundedFile:
    """A file that is appended to, and renamed to PATH.old when it holds half of `max_bytes`."""

    def __init__(self, path: Path, header: bytes, max_bytes: int) -> None:
        self.path = path
        self._header, self._half_bytes = header, max_bytes // 2
        try:
            self._file = self._open()
        except OSError as error:
            rule = "a file that can be written"
            raise ConfigError(
                f"additional_config.kairos.step_record.file must be {rule}, got {str(path)!r}: {error.strerror}"
            ) from error

    def write(self, line: bytes) -> None:
        """Append one line, in a new file if the old one is full."""
        if self._bytes + len(line) > self._half_bytes:
            self._file.close()
            self.path.replace(self.path.with_name(self.path.name + OLD_SUFFIX))
            self._file = self._open()
        self._file.write(line)
        self._bytes += len(line)

    def flush(self) -> None:
        """Let readers see it."""
        self._file.flush()

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def _open(self) -> BinaryIO:
        file = self.path.open("ab")
        self._bytes = file.tell() + len(self._header)
        file.write(self._header)
        return file
