"""What a scenario acts upon: servers, the router, and the replay's sender."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from benchmarks.serving.failing.front import FrontProcess
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.plan import ProcessPlan
from vllm_kairos.errors import ClusterError

_TIMEOUT = aiohttp.ClientTimeout(total=10)
_POLL_S = 0.25
USED_WITHIN_S = 15.0
"""A server that has served for so long without a request counts as not used again."""
_GENERATED = "vllm:generation_tokens_total"

NewFront = Callable[[], Awaitable[FrontProcess]]
"""Starts another router of the same kind; it serves when this returns, and requests go to it from then on."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """One cell's surroundings. `moments` says what happened when, in seconds from the replay's start."""

    cluster: LocalCluster
    session: aiohttp.ClientSession
    front: FrontProcess
    new_front: NewFront
    repeat: int
    started_s: float = 0.0
    moments: dict[str, float] = field(default_factory=dict)

    def now_s(self) -> float:
        """Seconds from the replay's start."""
        return time.perf_counter() - self.started_s

    def note(self, what: str) -> None:
        """Remember that this happened now."""
        self.moments[what] = self.now_s()

    async def until(self, at_s: float) -> None:
        """Wait for a moment of the replay."""
        await asyncio.sleep(max(0.0, at_s - self.now_s()))

    def victim(self, role: str) -> str:
        """The server of this role, `p` or `d`, whose turn it is in this repeat."""
        servers = self.cluster.plan.prefill if role == "p" else self.cluster.plan.decode
        return servers[self.repeat % len(servers)].name

    def kill(self, name: str) -> None:
        """`kill -9` for a server and its engine core."""
        os.killpg(self.cluster.pid(name), signal.SIGKILL)

    async def bring_back(self, name: str) -> None:
        """Start a killed server again, and see when it serves and when its first token is out."""
        self.note("start")
        await self.cluster.restart(name)
        self.note("healthy")
        while self.now_s() < self.moments["healthy"] + USED_WITHIN_S:
            if await self._generated(self.server(name)):
                self.note("used")
                return
            await asyncio.sleep(_POLL_S)

    async def fault(self, name: str, **fault: Any) -> None:
        """Have an emulated fault happen on a server. Raises ClusterError when it does not take it."""
        url = f"{self.server(name).url}/kairos/emulation/faults"
        try:
            async with self.session.post(url, json=fault, timeout=_TIMEOUT) as answer:
                said = "" if answer.status == 200 else f"{answer.status}: {await answer.text()}"
        except (aiohttp.ClientError, TimeoutError) as error:
            said = f"{type(error).__name__}: {error}"
        if said:
            raise ClusterError(f"{name} must take the fault {fault}, got {said}")

    def server(self, name: str) -> ProcessPlan:
        """The server of this name."""
        return next(server for server in self.cluster.plan.servers if server.name == name)

    async def _generated(self, server: ProcessPlan) -> bool:
        """Whether any token came out of it since it started."""
        try:
            async with self.session.get(f"{server.url}/metrics", timeout=_TIMEOUT) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return False
        return any(float(line.rpartition(" ")[2]) > 0 for line in text.splitlines() if line.startswith(_GENERATED))
