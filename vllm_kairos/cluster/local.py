"""`async with LocalCluster(spec)`: servers and router, healthy inside the block and gone after it."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from vllm_kairos.cluster.emulated import server_memory_gib
from vllm_kairos.cluster.fork_server import ForkConnection
from vllm_kairos.cluster.machine import check_memory
from vllm_kairos.cluster.plan import FORK_SERVER, ClusterPlan, ProcessPlan, make_plan, router_plan
from vllm_kairos.cluster.process import Child, stop
from vllm_kairos.cluster.spec import ClusterSpec, Device
from vllm_kairos.errors import ClusterError

POLL_S = 0.25
FORK_POLL_S = 0.05
_PROBE_TIMEOUT = aiohttp.ClientTimeout(total=2)

Report = Callable[[str, str], None]
"""Told (process name, what happened), for progress."""


class LocalCluster:
    """A running cluster. Entering the block raises ClusterError when a process dies or is not healthy in time."""

    def __init__(self, spec: ClusterSpec, *, report: Report = lambda name, text: None) -> None:
        self._spec = spec
        self._report = report
        self._plan = make_plan(spec)
        self._children: dict[str, Child] = {}
        self._forks: ForkConnection | None = None
        self.log_dir = _log_dir(spec)

    @property
    def plan(self) -> ClusterPlan:
        """Names, ports and command lines."""
        return self._plan

    @property
    def router_url(self) -> str:
        """Where clients send requests."""
        return f"http://127.0.0.1:{self._plan.router_port}"

    def pid(self, name: str) -> int:
        """The process (and group) id of a server or of `router`."""
        return self._children[name].pid

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def start(self) -> None:
        """Start everything and wait until it serves; on any failure everything is ended first."""
        if self._spec.device is Device.CPU:
            check_memory(self._spec.servers, server_memory_gib(self._spec))
        try:
            if self._plan.fork_server is not None:
                await self._start_fork_server(self._plan.fork_server)
            for server in self._plan.servers:
                self._start(server, self._forks)
            await self._all_healthy([server.name for server in self._plan.servers])
            if self._spec.router:
                await self.start_router(self._spec.policy)
        except BaseException:
            self.stop()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def start_router(self, policy: str | None = None, *, log_dir: Path | None = None) -> None:
        """Start the router and wait until it serves; its logs go to `log_dir`, or to the cluster's."""
        where = log_dir or self.log_dir
        where.mkdir(parents=True, exist_ok=True)
        self._start(router_plan(self._spec, self._plan, policy=policy, log_dir=where))
        await self._all_healthy(["router"])

    def stop_router(self) -> None:
        """End the router alone; the servers go on."""
        stop([self._children.pop("router")])

    async def restart(self, name: str) -> None:
        """Start a server anew, after ending whatever is left of it, and wait until it serves."""
        stop([self._children.pop(name)])
        (plan,) = [server for server in self._plan.servers if server.name == name]
        self._start(plan, self._forks)
        await self._all_healthy([name])

    async def watch(self) -> None:
        """Report error lines until a process ends, which raises ClusterError."""
        while True:
            self._check_alive()
            await asyncio.sleep(POLL_S)

    def stop(self) -> None:
        """End every process that this cluster started."""
        fork_server = self._children.pop(FORK_SERVER, None)
        stop(list(self._children.values()))
        self._children.clear()
        if fork_server is not None:  # last, since it tells how the others ended
            stop([fork_server])
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def _start(self, plan: ProcessPlan, forks: ForkConnection | None = None) -> None:
        self._children[plan.name] = Child(plan, self._log(plan.name), forks=forks)
        self._report(plan.name, "starting")

    async def _start_fork_server(self, plan: ProcessPlan) -> None:
        self._forks = ForkConnection()
        with self._forks.theirs as theirs:
            self._children[plan.name] = Child(plan, self._log(plan.name), stdin=theirs.fileno())
        self._report(plan.name, "starting")
        started_s = time.monotonic()
        while not self._forks.is_ready:
            self._check_alive()
            self._check_in_time(plan.name, started_s)
            await asyncio.sleep(FORK_POLL_S)
        self._report(plan.name, f"ready after {time.monotonic() - started_s:.0f} s")

    def _log(self, name: str) -> Path:
        return self.log_dir / f"{name}-output.log"

    def _check_in_time(self, name: str, started_s: float) -> None:
        if time.monotonic() - started_s > self._spec.startup_timeout_s:
            limit = f"{self._spec.startup_timeout_s:g} s"
            raise ClusterError(f"{name} must be healthy within {limit}; its log is {self._children[name].log}")

    async def _all_healthy(self, names: Sequence[str]) -> None:
        started_s = time.monotonic()
        waiting = list(names)
        async with aiohttp.ClientSession(timeout=_PROBE_TIMEOUT) as session:
            while waiting:
                self._check_alive()
                for name in list(waiting):
                    if await _is_healthy(session, self._children[name].plan.url):
                        waiting.remove(name)
                        self._report(name, f"healthy after {time.monotonic() - started_s:.0f} s")
                if waiting:
                    self._check_in_time(waiting[0], started_s)
                    await asyncio.sleep(POLL_S)

    def _check_alive(self) -> None:
        for name, child in self._children.items():
            for line in child.new_error_lines():
                self._report(name, line)
            status = child.exit_status()
            if status is not None:
                raise ClusterError(f"{name} ended with status {status}: {child.cause_of_death()} (log: {child.log})")


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _log_dir(spec: ClusterSpec) -> Path:
    if spec.log_dir is None:
        return Path(tempfile.mkdtemp(prefix="kairos-up-"))
    path = Path(spec.log_dir).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"log_dir must be a directory that can be made, got {spec.log_dir!r}: {error.strerror}") from error
    return path
