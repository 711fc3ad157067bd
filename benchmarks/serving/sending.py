"""The load of a cell, sent in open loop by the code of `kairos replay`."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import cycle

from vllm_kairos.errors import ClusterError
from vllm_kairos.replay.exchange import Clock, Exchange, Sender
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.replay.http_sender import HttpSender
from vllm_kairos.replay.run import Outcome, replay_through, resolve_endpoint
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.settings import LoadSettings, ReplaySettings
from vllm_kairos.workload import transforms
from vllm_kairos.workload.request import Workload

PATIENCE_S = 60.0
"""How long after the last request was due answers are waited for: a queue that grows without end would take minutes."""
_WARM_UP_REQUESTS, _WARM_UP_RPS = 8, 4.0
_WARM_UP_MOST_TOKENS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, to several URLs in turn, by which model's name, and what is expected of the answers."""

    urls: tuple[str, ...]
    model: str
    objectives: Objectives


class InTurn:
    """Sends the first request through the first sender, the next through the next, and so around."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._turns = cycle(senders)

    async def send(self, exchange: Exchange, clock: Clock) -> None:
        """Stream the answer into `exchange`. Raises SendError or StreamError."""
        await next(self._turns).send(exchange, clock)


class _Silent:
    """Watches a replay and says nothing."""

    def waiting(self, now_s: float, due_s: float) -> None: ...

    def sent(self, lag_s: float) -> None: ...

    def ended(self, sample: Sample) -> None: ...


async def send(target: Target, workload: Workload, *, seed: int, patience_s: float = PATIENCE_S) -> Outcome:
    """Send `workload` as it is, with prompts by `seed`; what has no answer `patience_s` after the last was due is cut off."""
    settings = ReplaySettings(
        load=LoadSettings(workload="Bursty", seed=seed),  # of which only the seed is read
        url=target.urls[0],
        model=target.model,
        timeout_s=None,
        objectives=target.objectives,
    )
    endpoint = await resolve_endpoint(settings)
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        places = [replace(endpoint, url=url) for url in target.urls]
        senders = [await stack.enter_async_context(HttpSender(place, timeout_s=settings.timeout_s)) for place in places]
        timer = asyncio.get_running_loop().call_later(workload.requests[-1].arrival_s + patience_s, stop.set)
        try:
            return await replay_through(InTurn(senders), endpoint, settings, workload, _Silent(), stop)
        finally:
            timer.cancel()


async def warm_up(target: Target, workload: Workload, *, seed: int) -> None:
    """A few requests like the load's, shorter ones where they are very long, that count nowhere. Raises ClusterError."""
    few = transforms.with_prompt_limit(transforms.first(workload, _WARM_UP_REQUESTS), _WARM_UP_MOST_TOKENS, "clip")
    few = replace(few, requests=tuple(replace(one, arrival_s=at / _WARM_UP_RPS) for at, one in enumerate(few.requests)))
    outcome = await send(target, few, seed=seed)
    failed = [sample for sample in outcome.replayed.samples if not sample.ok]
    if len(failed) == len(few.requests):
        raise ClusterError(f"warm-up: every request failed, the first as {failed[0].error}: {failed[0].detail}")
