"""Our end of a fork server (vllm_kairos.emulation.fork_server): have it start processes, and hear how they end."""

import json
import os
import signal
import socket
from contextlib import suppress

from vllm_kairos.errors import ClusterError

_ANSWER_TIMEOUT_S = 30.0
_CHUNK_BYTES = 65_536


class ForkConnection:
    """The socket to a fork server. `theirs` is to become its standard input, and then to be closed here."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._unread = b""
        self._ready = self._closed = False
        self._started: list[int] = []
        self._statuses: dict[int, int] = {}

    @property
    def is_ready(self) -> bool:
        """Whether it can fork."""
        self._listen(0.0)
        return self._ready

    def start(self, argv: tuple[str, ...], environment: dict[str, str], log: str, cpus: frozenset[int]) -> "ForkedProcess":
        """Have a process started. Raises ClusterError when the fork server is gone."""
        job = {"argv": argv, "environment": environment, "log": log, "cpus": sorted(cpus)}
        try:
            self._ours.settimeout(_ANSWER_TIMEOUT_S)
            self._ours.sendall(json.dumps(job).encode() + b"\n")
            while not self._started and not self._closed:
                self._listen(_ANSWER_TIMEOUT_S)
        except OSError as error:
            raise ClusterError(f"the fork server must answer, got: {error}") from error
        if not self._started:
            raise ClusterError("the fork server must answer, got: it ended")
        return ForkedProcess(self, self._started.pop())

    def status(self, pid: int) -> int | None:
        """The exit status of a process that ended, None while it runs."""
        self._listen(0.0)
        if pid not in self._statuses and self._closed and not _exists(pid):
            return -signal.SIGTERM  # what the kernel sent it when the fork server died
        return self._statuses.get(pid)

    def wait(self, pid: int) -> None:
        """Return when that process has ended."""
        while self.status(pid) is None:
            with suppress(TimeoutError):
                self._listen(0.1)

    def close(self) -> None:
        """Let the fork server end."""
        self._closed = True
        self._ours.close()

    def _listen(self, timeout_s: float) -> None:
        """Take in what was said; with a timeout, wait for something. Raises TimeoutError."""
        if self._closed:
            return
        self._ours.settimeout(timeout_s)
        try:
            fresh = self._ours.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            fresh = b""
        self._closed = not fresh
        *lines, self._unread = (self._unread + fresh).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, message: dict[str, int]) -> None:
        if "status" in message:
            self._statuses[message["pid"]] = message["status"]
        elif "pid" in message:
            self._started.append(message["pid"])
        else:
            self._ready = True


class ForkedProcess:
    """A process as `subprocess.Popen` shows one; its parent is the fork server."""

    def __init__(self, connection: ForkConnection, pid: int) -> None:
        self._connection = connection
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status, None while it runs."""
        return self._connection.status(self.pid)

    def terminate(self) -> None:
        """Send SIGTERM."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def wait(self) -> None:
        """Return when it has ended."""
        self._connection.wait(self.pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
