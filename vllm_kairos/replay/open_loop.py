"""Send every request when it is due, whatever has become of those before it.

Requests are made ready ahead of time and each is sent by a task of its own, so that sending never waits for an answer.
Times are of the clock given: an event loop's own may be as coarse as a millisecond.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from vllm_kairos.replay.endpoint import Prepared
from vllm_kairos.replay.exchange import Clock, Exchange, Sender, SendError
from vllm_kairos.replay.sample import Sample
from vllm_kairos.replay.schedule import Schedule
from vllm_kairos.replay.stream import StreamError
from vllm_kairos.workload.request import TraceRequest

_MOST_READY = 256
_READY_AHEAD_S = 10.0
INTERRUPTED = "interrupted"


class Observer(Protocol):
    """Told what happens, to show it."""

    def waiting(self, now_s: float, due_s: float) -> None:
        """Nothing is due before `due_s`."""

    def sent(self, lag_s: float) -> None:
        """One more request was sent, so late."""

    def ended(self, sample: Sample) -> None:
        """One more request has ended."""


Prepare = Callable[[TraceRequest, int], Prepared]


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was sent, in the workload's order, and how many requests never were."""

    samples: tuple[Sample, ...]
    not_sent: int


class OpenLoop:
    """One replay of `requests`; `prepare` makes a request ready to send, given its place."""

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        *,
        ramp_s: float,
        prepare: Prepare,
        sender: Sender,
        observer: Observer,
        clock: Clock = time.perf_counter,
    ) -> None:
        self._requests = requests
        self._schedule = Schedule(requests, ramp_s=ramp_s)
        self._prepare, self._sender, self._observer, self._clock = prepare, sender, observer, clock
        self._ready: list[tuple[float, int, Prepared]] = []
        self._samples: dict[int, Sample] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._started_s = 0.0
        self._broken: BaseException | None = None

    async def run(self, stop: asyncio.Event) -> Replayed:
        """Send everything and wait for the answers; when `stop` is set, keep what there is and return."""
        while self._should_prepare(0.0):
            self._prepare_one()
        self._started_s = self._clock()
        stopper = asyncio.create_task(self._wake_on(stop))
        try:
            while not stop.is_set() and (self._ready or self._schedule.next or self._tasks):
                await self._act()
                if self._broken is not None:
                    raise self._broken
        finally:
            stopper.cancel()
            await self._cut()
        samples = tuple(self._samples[index] for index in sorted(self._samples))
        return Replayed(samples, len(self._requests) - len(samples))

    def _now_s(self) -> float:
        return self._clock() - self._started_s

    async def _act(self) -> None:
        """Send, make ready or wait: whichever is to be done first."""
        now_s = self._now_s()
        if self._ready and self._ready[0][0] <= now_s and not self._is_overtaken():
            self._start(*heappop(self._ready))
        elif self._should_prepare(now_s):
            self._prepare_one()
            await asyncio.sleep(0)
        else:
            await self._wait(now_s)

    def _is_overtaken(self) -> bool:
        """Say whether a request that is not ready is due before all that are."""
        upcoming = self._schedule.next
        return upcoming is not None and upcoming < self._ready[0][:2]

    def _should_prepare(self, now_s: float) -> bool:
        upcoming = self._schedule.next
        if upcoming is None or upcoming[0] > now_s + _READY_AHEAD_S:
            return False
        return len(self._ready) < _MOST_READY or self._is_overtaken()

    def _prepare_one(self) -> None:
        due_s, index = self._schedule.take()
        heappush(self._ready, (due_s, index, self._prepare(self._requests[index], index)))

    async def _wait(self, now_s: float) -> None:
        """Until something is due, or ready to be made ready, or has changed."""
        due_s = min((first[0] for first in (self._schedule.next, *self._ready[:1]) if first is not None), default=None)
        timer = None
        if due_s is not None:
            self._observer.waiting(now_s, due_s)
            until_s = due_s if self._ready else due_s - _READY_AHEAD_S
            timer = asyncio.get_running_loop().call_later(max(0.0, until_s - now_s), self._changed.set)
        await self._changed.wait()
        self._changed.clear()
        if timer is not None:
            timer.cancel()

    def _start(self, due_s: float, index: int, prepared: Prepared) -> None:
        task = asyncio.create_task(self._send(due_s, index, prepared))
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
        if not task.cancelled() and task.exception() is not None:
            self._broken = self._broken or task.exception()

    async def _send(self, due_s: float, index: int, prepared: Prepared) -> None:
        exchange = Exchange(prepared=prepared, due_s=due_s, sent_s=self._now_s())
        self._exchanges[index] = exchange
        self._observer.sent(exchange.sent_s - due_s)
        failure: StreamError | SendError | None = None
        try:
            await self._sender.send(exchange, self._now_s)
        except (StreamError, SendError) as error:
            failure = error
        except asyncio.CancelledError:
            failure = SendError(INTERRUPTED, "the replay was stopped")
        self._finish(index, failure)

    def _finish(self, index: int, failure: StreamError | SendError | None) -> None:
        ended_s = self._now_s()
        sample = self._exchanges.pop(index).sample(ended_s, failure)
        self._samples[index] = sample
        self._observer.ended(sample)
        self._schedule.ended(index, ended_s)

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _cut(self) -> None:
        """End what is still on its way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
