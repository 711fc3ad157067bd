"""Servers forked from one process that has imported vLLM: most of an emulated server's start-up is that import.

`python -m vllm_kairos.emulation.fork_server` has a socket as its standard input, and reads lines of JSON
from it: `{"argv", "environment", "log", "cpus"}` is a server to start, answered by `{"pid"}` and, when that
process ends, by `{"pid", "status"}` (an exit status as `subprocess` has it). The first line out, `{"ready": true}`,
says that vLLM is there. When the other end of the socket closes it ends, and all its servers with it.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PR_SET_PDEATHSIG = 1
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Job:
    """One server to become: the words behind `python -m MODULE`, what to add to the environment, where output goes."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    log: str
    cpus: Sequence[int] = ()


class ForkServer:
    """Forks for every job that comes through `connection`, and tells of every death."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ, None)
        self._unread = b""

    def run(self) -> Job | None:
        """Returns twice or more, as fork does: in each server with its job, here with None when the other end closed."""
        self._tell({"ready": True})
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.fd, key.data)
                    continue
                jobs = self._read()
                if jobs is None:
                    return None
                for job in jobs:
                    if self._fork(job):
                        return job

    def _read(self) -> list[Job] | None:
        """Jobs that came whole; None when there will be no more."""
        fresh = self._connection.recv(_CHUNK_BYTES)
        *lines, self._unread = (self._unread + fresh).split(b"\n")
        return [Job(**json.loads(line)) for line in lines] if fresh else None

    def _fork(self, job: Job) -> bool:
        """Whether this is the server."""
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._let_go()
            _settle(job, parent)
            return True
        self._selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        self._tell({"pid": pid})
        return False

    def _reap(self, descriptor: int, pid: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})

    def _let_go(self) -> None:
        """In a server: close what is the fork server's. Its standard input is the connection, and is replaced later."""
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                os.close(key.fd)
        self._selector.close()
        self._connection.close()

    def _tell(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def _settle(job: Job, parent: int) -> None:
    """Be a process of one's own, as if started by itself; ended by the kernel should the fork server die."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
    _redirect(os.devnull, os.O_RDONLY, 0)
    for descriptor in (1, 2):
        _redirect(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, descriptor)
    os.environ.update(job.environment)
    if job.cpus:
        os.sched_setaffinity(0, job.cpus)
    sys.argv = [sys.argv[0], *job.argv]


def _redirect(path: str, flags: int, descriptor: int) -> None:
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, descriptor)
    os.close(opened)


def main() -> None:
    """Import, then fork; a server goes on as `python -m` of vLLM's API server would."""
    from vllm_kairos.emulation import compat_server

    compat_server.preload()
    connection = socket.socket(fileno=os.dup(0))
    if ForkServer(connection).run() is not None:
        compat_server.serve()


if __name__ == "__main__":
    main()
