"""Gives up KV handles that nobody will pull, so that the prefill server frees their blocks at once.

What frees a prefill server in vLLM 0.30-0.32 (NIXL pull mode): a notification from a decode server,
which sends one after its pull, when it aborts a request with `do_remote_prefill`, and when it refuses
one before admission; else the lease ends after 30 s. Aborting the finished prefill frees nothing. The
refusal is the one that never computes a token, so that is what is sent (payload.release_leg).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from kairos_router import payload
from kairos_router.handles import Handle
from kairos_router.headers import REQUEST_ID
from kairos_router.metrics import RouterMetrics
from kairos_router.registry import Worker
from kairos_router.upstream import Call, Upstream, UpstreamFailure

_RELEASE_TIMEOUT_S = 5.0


class HandleReleaser:
    """Runs releases in the background; `pick_decode` names a decode server that can tell P, None if there is none."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        metrics: RouterMetrics,
        pick_decode: Callable[[], Worker | None],
        api_key: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._pick_decode = pick_decode
        self._api_key = api_key
        self._tasks: set[asyncio.Task[None]] = set()

    def give_up(self, handle: Handle, leg_id: str) -> None:
        """Have `handle` released, soon and without waiting; counted as stranded when that fails."""
        task = asyncio.get_running_loop().create_task(self._release(handle, leg_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for the releases under way; each is bounded."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _release(self, handle: Handle, leg_id: str) -> None:
        worker = self._pick_decode()
        if worker is None:
            self._metrics.stranded_kv("no-decode-node")
            return
        sent = {REQUEST_ID: leg_id, "content-type": "application/json"}
        if self._api_key:
            sent["authorization"] = f"Bearer {self._api_key}"
        call = Call(url=worker.url + payload.Endpoint.COMPLETIONS, headers=sent, body=payload.release_leg(handle.params))
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S), self._upstream.send(call) as answer:
                await answer.read()
        except (UpstreamFailure, TimeoutError):
            self._metrics.stranded_kv("release-failed")
