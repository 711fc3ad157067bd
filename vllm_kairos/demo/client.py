"""An open-loop client: it sends when the load says so and notes when each token came."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import aiohttp

from vllm_kairos.demo.load import PlannedRequest

TIMEOUT = aiohttp.ClientTimeout(total=300)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the client saw of one request; `token_times_s` count from the moment it was due."""

    due_s: float
    prompt_tokens: int
    wanted_tokens: int
    token_times_s: tuple[float, ...]
    error: str = ""

    @property
    def ttft_s(self) -> float:
        """Seconds from when it was due to its first token."""
        return self.token_times_s[0]

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Times between its tokens."""
        return tuple(later - earlier for earlier, later in pairwise(self.token_times_s))


async def send_load(
    url: str, model: str, load: Sequence[PlannedRequest], *, done: Callable[[], None] = lambda: None
) -> list[Sample]:
    """Send every request at its time; `done` is called as each ends."""
    async with aiohttp.ClientSession(url, timeout=TIMEOUT, connector=aiohttp.TCPConnector(limit=0)) as session:
        started_s = time.perf_counter()
        tasks = [asyncio.create_task(_send_when_due(session, model, request, started_s, done)) for request in load]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()


async def send_one_by_one(url: str, model: str, load: Sequence[PlannedRequest]) -> list[Sample]:
    """Send each request when the one before has ended: what an idle system takes."""
    async with aiohttp.ClientSession(url, timeout=TIMEOUT) as session:
        return [await _send(session, model, request, time.perf_counter()) for request in load]


async def _send_when_due(
    session: aiohttp.ClientSession, model: str, request: PlannedRequest, started_s: float, done: Callable[[], None]
) -> Sample:
    due_s = started_s + request.at_s
    await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
    sample = await _send(session, model, request, due_s)
    done()
    return sample


async def _send(session: aiohttp.ClientSession, model: str, request: PlannedRequest, due_s: float) -> Sample:
    times_s: list[float] = []
    error = ""
    try:
        await _stream(session, _body(model, request), due_s, times_s)
    except (aiohttp.ClientError, TimeoutError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    if not error and len(times_s) < request.output_tokens:
        error = f"ended after {len(times_s)} of {request.output_tokens} tokens"
    return Sample(
        due_s=request.at_s,
        prompt_tokens=len(request.prompt),
        wanted_tokens=request.output_tokens,
        token_times_s=tuple(times_s),
        error=error,
    )


async def _stream(session: aiohttp.ClientSession, body: dict[str, object], due_s: float, times_s: list[float]) -> None:
    """Append the time of each token; raises ValueError for an answer that is not a whole stream."""
    async with session.post("/v1/completions", json=body) as answer:
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {(await answer.text())[:200]}")
        is_done = False
        async for line in answer.content:  # to its very end: leaving earlier would look like a lost client
            is_done = is_done or line.startswith(b"data: [DONE]")
            if line.startswith(b"data:") and not is_done:
                times_s.extend([time.perf_counter() - due_s] * _tokens_in(line[len(b"data:") :]))
    if not is_done:
        raise ValueError("the stream ended without [DONE]")


def _tokens_in(event: bytes) -> int:
    """Tokens that one event carries; an error event raises ValueError."""
    payload = json.loads(event)
    if "error" in payload:
        raise ValueError(f"error event: {payload['error']}")
    return sum(len(choice.get("token_ids") or ()) for choice in payload.get("choices", ()))


def _body(model: str, request: PlannedRequest) -> dict[str, object]:
    return {
        "model": model,
        "prompt": list(request.prompt),
        "max_tokens": request.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "return_token_ids": True,
    }
