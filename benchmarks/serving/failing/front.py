"""A router's process before the servers: started, told to end, and asked what it counted."""

import os
import re
import signal
from pathlib import Path

import aiohttp

from benchmarks.serving.contenders import Contender
from benchmarks.serving.ready import wait_ready
from vllm_kairos.cluster.machine import HOST
from vllm_kairos.cluster.plan import ProcessPlan
from vllm_kairos.cluster.process import Child, stop

_TIMEOUT = aiohttp.ClientTimeout(total=5)
_LINE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)")


class FrontProcess:
    """One router. Whoever makes it must `stop` it."""

    def __init__(self, contender: Contender, plan: ProcessPlan, metrics_port: int, log: Path) -> None:
        self.contender, self.url = contender, plan.url
        self._metrics_url = f"http://{HOST}:{metrics_port}/metrics"
        self._child = Child(plan, log)

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until it serves. Raises ClusterError."""
        await wait_ready(session, self.contender.name, self._child, self.url + self.contender.health_path)

    def ask_to_end(self) -> None:
        """SIGTERM."""
        os.kill(self._child.pid, signal.SIGTERM)

    @property
    def is_running(self) -> bool:
        return self._child.exit_status() is None

    async def counters(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """Sums over labels of what it counts of retries and of failures; empty where it does not say."""
        try:
            async with session.get(self._metrics_url, timeout=_TIMEOUT) as answer:
                return failure_counters(await answer.text())
        except (aiohttp.ClientError, TimeoutError):
            return {}

    def stop(self) -> None:
        """End it, by force after a grace period."""
        stop([self._child])


def failure_counters(text: str) -> dict[str, float]:
    """From a router's `/metrics`: counters with `retries` or `errors` in their names, those above 0."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if match and match[1].endswith("_total") and ("retries" in match[1] or "errors" in match[1]):
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return {name: value for name, value in found.items() if value}
