"""The fork server, with jobs that say something and end instead of serving."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# As the module's main(), with something lighter than vLLM to become.
FORK_SERVER = """
import os, socket, sys, time
from vllm_kairos.emulation.fork_server import ForkServer
job = ForkServer(socket.socket(fileno=os.dup(0))).run()
if job is not None:
    print("argv", *sys.argv[1:], "color", os.environ["COLOR"], "stdin", repr(sys.stdin.read()), flush=True)
    open_files = [os.readlink(f"/proc/self/fd/{number}") for number in range(20) if os.path.islink(f"/proc/self/fd/{number}")]
    print("alone", os.getsid(0) == os.getpid(), "sockets", sum(name.startswith("socket") for name in open_files), flush=True)
    if sys.argv[1] == "wait":
        time.sleep(600)
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def forks() -> Iterator[Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([sys.executable, "-c", FORK_SERVER], stdin=theirs)
        theirs.close()
        with ours.makefile("rw") as stream:
            yield process, stream
        ours.close()
        process.wait(10)


def _ask(stream: Any, **job: Any) -> None:
    stream.write(json.dumps(job) + "\n")
    stream.flush()


def _hear(stream: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(stream.readline())
    return message


def test_a_job_is_a_process_of_its_own(forks: Any, tmp_path: Path) -> None:
    _, stream = forks
    assert _hear(stream) == {"ready": True}
    _ask(stream, argv=["3", "--port", "1"], environment={"COLOR": "green"}, log=str(tmp_path / "log"))
    pid = _hear(stream)["pid"]
    assert _hear(stream) == {"pid": pid, "status": 3}
    assert (tmp_path / "log").read_text().splitlines() == [
        "argv 3 --port 1 color green stdin ''",
        "alone True sockets 0",
    ]


def test_jobs_run_side_by_side_and_their_deaths_are_told(forks: Any, tmp_path: Path) -> None:
    _, stream = forks
    _hear(stream)
    pids = []
    for color in ("red", "blue"):
        _ask(stream, argv=["wait"], environment={"COLOR": color}, log=str(tmp_path / color))
        pids.append(_hear(stream)["pid"])
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)
        assert _hear(stream) == {"pid": pid, "status": -signal.SIGKILL}


def test_jobs_end_with_the_fork_server(forks: Any, tmp_path: Path) -> None:
    process, stream = forks
    _hear(stream)
    _ask(stream, argv=["wait"], environment={"COLOR": "red"}, log=str(tmp_path / "log"), cpus=sorted(os.sched_getaffinity(0)))
    descriptor = os.pidfd_open(_hear(stream)["pid"])
    process.kill()
    try:
        assert select.select([descriptor], [], [], 10)[0], "the kernel ends it"
    finally:
        os.close(descriptor)
