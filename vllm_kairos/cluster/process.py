"""One child process: started in its own group, logged to a file, and certain to end."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from vllm_kairos.cluster.fork_server import ForkConnection, ForkedProcess
from vllm_kairos.cluster.plan import ProcessPlan

GRACE_S = 10.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_LOGGED_ERROR = re.compile(r"\b(ERROR|CRITICAL)\b")
_EXCEPTION = re.compile(r"(?:^|\s)(?:[\w.]+\.)?\w*(?:Error|Exception)\b: ?\S.*|kairos: .*|.*\berror: .*")


class Child:
    """A running process of the cluster. `log` is the file that holds its output.

    With `forks` a fork server starts it: its command line must be `python -m` of what that one serves.
    """

    def __init__(
        self, plan: ProcessPlan, log: Path, *, forks: ForkConnection | None = None, stdin: int = subprocess.DEVNULL
    ) -> None:
        self.plan = plan
        self.log = log
        self._read_bytes = log.stat().st_size if log.exists() else 0
        self._process = _spawned(plan, log, stdin) if forks is None else _forked(plan, log, forks)

    @property
    def pid(self) -> int:
        """Process id, which is also its group's."""
        return self._process.pid

    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def new_error_lines(self) -> list[str]:
        """Error lines written to the log since the last call."""
        with self.log.open("rb") as stream:
            stream.seek(self._read_bytes)
            fresh = stream.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return [line for line in whole.decode(errors="replace").splitlines() if _LOGGED_ERROR.search(line)]

    def cause_of_death(self) -> str:
        """The last line of the log that reads like an error, or the last line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [found.group().strip() for line in lines if (found := _EXCEPTION.search(line))]
        root = [line for line in errors if "EngineCore" not in line and "See root cause" not in line]
        return (root or errors or lines or ["no output"])[-1][:300]

    def ask_to_end(self) -> None:
        """Send SIGTERM to the leader: a vLLM server then ends its own workers."""
        if self.exit_status() is None:
            self._process.terminate()

    def kill_group(self) -> None:
        """SIGKILL whatever is left of the group, and reap the leader."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def stop(children: Sequence[Child]) -> None:
    """End all children and everything they started. Blocks, so that no second Ctrl-C can cut it short."""
    for child in children:
        child.ask_to_end()
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s and any(child.exit_status() is None for child in children):
        time.sleep(_POLL_S)
    for child in children:
        child.kill_group()


def _spawned(plan: ProcessPlan, log: Path, stdin: int) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(
            plan.argv,
            env=os.environ | plan.environment,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _settle(plan.cpus),
        )


def _forked(plan: ProcessPlan, log: Path, forks: ForkConnection) -> ForkedProcess:
    log.touch()  # the process opens it a moment later than we may read it
    _python, _minus_m, _module, *words = plan.argv
    return forks.start(tuple(words), dict(plan.environment), str(log), plan.cpus)


def _settle(cpus: frozenset[int]) -> None:
    """Runs in the child before exec: pin it, and have the kernel end it should we be killed outright."""
    if cpus:
        os.sched_setaffinity(0, cpus)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
