"""When a front serves."""

import asyncio
import time

import aiohttp

from vllm_kairos.cluster.process import Child
from vllm_kairos.errors import ClusterError

_LIMIT_S = 60.0
_POLL_S = 0.1
_TIMEOUT = aiohttp.ClientTimeout(total=5)


async def wait_ready(session: aiohttp.ClientSession, name: str, child: Child, health_url: str) -> None:
    """Wait until the front `name`, which runs as `child`, answers. Raises ClusterError when it ends or takes too long."""
    started_s = time.monotonic()
    while not await answers(session, health_url):
        waited_s = time.monotonic() - started_s
        if child.exit_status() is not None or waited_s > _LIMIT_S:
            why = child.cause_of_death()
            raise ClusterError(f"{name} must serve within {_LIMIT_S:g} s, after {waited_s:.0f} s: {why}")
        await asyncio.sleep(_POLL_S)


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether a GET is answered with 200."""
    try:
        async with session.get(url, timeout=_TIMEOUT) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
