"""Gives up KV handles that nobody will pull, so that the prefill server frees their blocks at once.

What frees a prefill server in vLLM 0.30-0.32 (NIXL pull mode): a notification from a decode server,
which sends one after its pull, when it aborts a request with `do_remote_prefill`, and when it refuses
one before admission; else the lease ends after 30 s. Aborting the finished prefill frees nothing. The
refusal is the one that never computes a token, so that is what is sent (payload.release_leg).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

from kairos_router import headers, payload
from kairos_router.handles import Handle
from kairos_router.metrics import RouterMetrics
from kairos_router.registry import Worker
from kairos_router.upstream import Call, Upstream, UpstreamFailure

_RELEASE_TIMEOUT_S = 5.0
_REFUSED_MODEL_STATUS = 404  # any other answer came from a layer that does not know of the handle


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

    def give_up(self, handle: Handle, incoming: Mapping[str, str], leg_id: str) -> None:
        """Have `handle` released, soon and without waiting; counted as stranded when that fails.

        `incoming` are the headers of the client it was computed for: servers may want its credentials.
        """
        task = asyncio.get_running_loop().create_task(self._release(handle, incoming, leg_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait for the releases under way; each is bounded."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _release(self, handle: Handle, incoming: Mapping[str, str], leg_id: str) -> None:
        worker = self._pick_decode()
        if worker is None:
            self._metrics.stranded_kv("no-decode-node")
            return
        sent = headers.leg_headers(incoming, leg_id=leg_id, dp_rank=None, api_key=self._api_key)
        sent["content-type"] = "application/json"
        call = Call(url=worker.url + payload.Endpoint.COMPLETIONS, headers=sent, body=payload.release_leg(handle.params))
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S), self._upstream.send(call) as answer:
                await answer.read()
                released = answer.status == _REFUSED_MODEL_STATUS
        except (UpstreamFailure, TimeoutError):
            released = False
        if not released:
            self._metrics.stranded_kv("release-failed")
