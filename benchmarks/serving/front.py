"""A contender's processes before the servers: started together, watched, and ended together."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from benchmarks.serving.contenders import Contender, FrontPlan
from benchmarks.serving.ready import wait_ready
from vllm_kairos.cluster.process import Child, stop
from vllm_kairos.errors import ClusterError

OUTPUT = "front.log"
"""What a process prints, in its own folder of logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFront:
    """A contender that serves: one process, or several alike. `ready_s` is how long they all took to."""

    name: str
    children: tuple[Child, ...]
    ready_s: float

    @property
    def urls(self) -> tuple[str, ...]:
        """Where clients send requests."""
        return tuple(child.plan.url for child in self.children)

    @property
    def groups(self) -> tuple[int, ...]:
        """The process groups."""
        return tuple(child.pid for child in self.children)

    def check_running(self) -> None:
        """Raise ClusterError when one has ended."""
        for child in self.children:
            if child.exit_status() is not None:
                raise ClusterError(f"{self.name} ended during the cell: {child.cause_of_death()}")


@asynccontextmanager
async def serving(
    contender: Contender, plans: Sequence[FrontPlan], session: aiohttp.ClientSession
) -> AsyncIterator[RunningFront]:
    """The contender, serving inside the block. Raises ClusterError."""
    started_s = time.monotonic()
    children: list[Child] = []
    try:
        for plan in plans:
            plan.log_dir.mkdir(parents=True, exist_ok=True)
            children.append(Child(plan.process, plan.log_dir / OUTPUT))
        for child in children:
            await wait_ready(session, contender.name, child, child.plan.url + contender.health_path)
        yield RunningFront(name=contender.name, children=tuple(children), ready_s=time.monotonic() - started_s)
    finally:
        await asyncio.to_thread(stop, children)
