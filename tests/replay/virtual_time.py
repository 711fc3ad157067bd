"""An event loop whose time jumps to the next timer, and a sender without a network: no test here waits."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from vllm_kairos.replay.endpoint import Endpoint, prepared
from vllm_kairos.replay.exchange import Clock, Exchange
from vllm_kairos.replay.open_loop import OpenLoop, Replayed
from vllm_kairos.replay.sample import Sample
from vllm_kairos.workload.request import TraceRequest

Play = Callable[[Exchange, Clock], Awaitable[None]]
ENDPOINT = Endpoint(url="http://stub", model="tiny")


class _JumpingSelector(selectors.SelectSelector):
    """Never blocks: what would be waited for is added to `now_s`."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("the loop would wait for ever")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its clock moves only when there is nothing else to do."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_virtually(story: Coroutine[Any, Any, Replayed]) -> Replayed:
    """Run to the end in no time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(story)


class PlayingSender:
    """Plays one script for every request."""

    def __init__(self, play: Play) -> None:
        self._play = play

    async def send(self, exchange: Exchange, clock: Clock) -> None:
        exchange.opened(200, {})
        await self._play(exchange, clock)
        exchange.stream.close(clock())


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.waits: list[tuple[float, float]] = []
        self.lags_s: list[float] = []
        self.samples: list[Sample] = []

    def waiting(self, now_s: float, due_s: float) -> None:
        self.waits.append((now_s, due_s))

    def sent(self, lag_s: float) -> None:
        self.lags_s.append(lag_s)

    def ended(self, sample: Sample) -> None:
        self.samples.append(sample)


def replay_virtually(
    requests: list[TraceRequest], play: Play, *, ramp_s: float = 0.0, stop_at_s: float | None = None, notes: Notes | None = None
) -> Replayed:
    """Replay `requests` in virtual time."""

    async def story() -> Replayed:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        if stop_at_s is not None:
            loop.call_later(stop_at_s, stop.set)
        open_loop = OpenLoop(
            requests,
            ramp_s=ramp_s,
            prepare=lambda request, index: prepared(request, f"id-{index}", ENDPOINT, [1]),
            sender=PlayingSender(play),
            observer=notes or Notes(),
            clock=loop.time,
        )
        return await open_loop.run(stop)

    return run_virtually(story())


def request(index: int = 0, arrival_s: float = 0.0, **fields: Any) -> TraceRequest:
    """One request of a trace."""
    given = {"prompt_tokens": 8, "output_tokens": 1} | fields
    return TraceRequest(request_id=f"r{index}", arrival_s=arrival_s, **given)
