"""Works recorded steps out and writes them and their counts, from a thread of its own: no engine step waits for a disk."""

import atexit
import os
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from vllm_kairos.engine import compat
from vllm_kairos.engine.step_totals_file import write_totals
from vllm_kairos.errors import ConfigError
from vllm_kairos.steps.analyst import StepAnalyst
from vllm_kairos.steps.recorded import RecordedStep
from vllm_kairos.steps.step_file import OLD_SUFFIX, FileHeader, StepLine, encode_line

_PERIOD_S = 0.5
_QUEUED_STEPS = 20_000
_STEPS_AT_ONCE = 8
_PAUSE_S = 1e-4
_CLOSE_TIMEOUT_S = 2.0
_LONGEST_LINE_BYTES = 65_536

logger = compat.init_logger("vllm.kairos.steps")


class StepWriter:
    """Takes steps, works them out and writes them, and the counts where they changed, twice a second and when closed.

    Between a few steps it pauses, so that the engine's thread never waits long for the interpreter. Steps that
    a stuck disk leaves no room for are counted without a line. A file that cannot be written any more is given
    up with one warning; the engine goes on.
    """

    def __init__(
        self, header: FileHeader, analyst: StepAnalyst, totals_path: Path, file: str | None, max_file_bytes: int
    ) -> None:
        self._analyst, self._totals, self._totals_path = analyst, analyst.totals, totals_path
        self._steps: deque[RecordedStep] = deque()
        self._working = threading.Lock()  # never held while a disk is waited for
        path = None if file is None else Path(file if header.dp_rank == 0 else f"{file}.{header.dp_rank}")
        self._file = None if path is None else BoundedFile(path, encode_line(header), max_file_bytes)
        self._written_steps = -1
        self._writes_totals = True
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kairos-steps", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # vLLM's engine core does not shut its scheduler down on every way out

    def put(self, step: RecordedStep) -> None:
        """Take one step; never waits for a disk."""
        self._steps.append(step)
        if len(self._steps) > _QUEUED_STEPS and self._next_line() is not None and self._file is not None:
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
            self._work_off()
            if self._writes_totals:
                self._write_totals()
        if self._file is not None:
            self._file.close()
        self._totals_path.unlink(missing_ok=True)

    def _next_line(self) -> StepLine | None:
        """Work out the oldest step; None when there is none."""
        with self._working:
            return self._analyst.take(self._steps.popleft()) if self._steps else None

    def _work_off(self) -> None:
        """All steps that have come by now."""
        for _ in range(0, len(self._steps), _STEPS_AT_ONCE):
            self._write([line for _ in range(_STEPS_AT_ONCE) if (line := self._next_line()) is not None])
            self._closed.wait(_PAUSE_S)

    def _write(self, lines: Iterable[StepLine]) -> None:
        file = self._file
        if file is None:
            return
        try:
            for line in lines:
                file.write(encode_line(line))
            file.flush()
        except OSError as error:
            logger.warning("Steps are no longer written to %s: %s", file.path, error.strerror)
            self._file = None
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
        file = self.path.open("a+b")
        _drop_torn_line(file)
        self._bytes = file.tell() + len(self._header)
        file.write(self._header)
        return file


def _drop_torn_line(file: BinaryIO) -> None:
    """Cut off a last line that an engine was killed in: with the header behind it no reader could take it for a line."""
    size = file.seek(0, os.SEEK_END)
    start = file.seek(max(0, size - _LONGEST_LINE_BYTES))
    tail = file.read()
    if tail and not tail.endswith(b"\n"):
        file.truncate(start + tail.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
