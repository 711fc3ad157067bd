"""One replay, from settings to samples."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, TypeVar

from vllm_kairos.replay.discovery import base_url, first_model, measured
from vllm_kairos.replay.endpoint import Endpoint, Prepared, PromptMaker, prepared
from vllm_kairos.replay.exchange import Sender
from vllm_kairos.replay.http_sender import HttpSender
from vllm_kairos.replay.lag import measure_lag
from vllm_kairos.replay.open_loop import Observer, OpenLoop, Prepare, Replayed
from vllm_kairos.replay.prompts import token_ids
from vllm_kairos.replay.settings import ReplaySettings
from vllm_kairos.replay.words import Measure, text
from vllm_kairos.workload.request import TraceRequest, Workload

_Answer = TypeVar("_Answer")


class Stopped(Exception):
    """The replay was stopped before anything was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a replay."""

    endpoint: Endpoint
    prompt_note: str
    replayed: Replayed
    client_lags_s: tuple[float, ...]
    wall_s: float
    interrupted: bool


async def replay(settings: ReplaySettings, workload: Workload, observer: Observer, stop: asyncio.Event) -> Outcome:
    """Send the workload to the endpoint. Raises ConfigError when it cannot be asked what it serves, Stopped meanwhile."""
    endpoint = await _unless_stopped(stop, resolve_endpoint(settings))
    async with HttpSender(endpoint, timeout_s=settings.timeout_s) as sender:
        return await replay_through(sender, endpoint, settings, workload, observer, stop)


async def replay_through(
    sender: Sender,
    endpoint: Endpoint,
    settings: ReplaySettings,
    workload: Workload,
    observer: Observer,
    stop: asyncio.Event,
) -> Outcome:
    """Hand the workload to `sender`, in the endpoint's words; what goes where is the sender's affair. Raises as `replay`."""
    measure, prompt_note = await _unless_stopped(stop, prompt_length(settings, endpoint))
    open_loop = OpenLoop(
        workload.requests,
        ramp_s=settings.load.ramp_s,
        prepare=preparer(endpoint, prompt_maker(settings, measure)),
        sender=sender,
        observer=observer,
    )
    started_s = time.perf_counter()
    client_lags_s: list[float] = []
    meter = asyncio.create_task(measure_lag(client_lags_s))
    try:
        replayed = await open_loop.run(stop)
    finally:
        meter.cancel()
    wall_s = time.perf_counter() - started_s
    return Outcome(
        endpoint=endpoint,
        prompt_note=prompt_note,
        replayed=replayed,
        client_lags_s=tuple(client_lags_s),
        wall_s=wall_s,
        interrupted=stop.is_set(),
    )


async def _unless_stopped(stop: asyncio.Event, asking: Coroutine[Any, Any, _Answer]) -> _Answer:
    """What the endpoint says about itself: it may take its time, and nobody has to wait for it. Raises Stopped."""
    asked, stopped = asyncio.create_task(asking), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({asked, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise Stopped
        return asked.result()
    finally:
        for task in (asked, stopped):
            task.cancel()
        await asyncio.gather(asked, stopped, return_exceptions=True)


async def resolve_endpoint(settings: ReplaySettings) -> Endpoint:
    """The endpoint with the model that requests will name."""
    url = base_url(settings.url)
    return Endpoint(
        url=url,
        kind=settings.kind,
        model=settings.model or await first_model(url, settings.api_key),
        dialect=settings.dialect,
        api_key=settings.api_key,
        extra_body=settings.extra_body,
        slo_headers=settings.slo_headers,
    )


async def prompt_length(settings: ReplaySettings, endpoint: Endpoint) -> tuple[Measure, str]:
    """How the endpoint counts our text, and what to know about the prompts' lengths."""
    if not settings.as_text:
        return Measure(), "prompts are token ids, as many as the trace says"
    found = await measured(endpoint.url, endpoint.api_key, endpoint.model, chat=endpoint.kind == "chat")
    if found is None:
        return Measure(), "prompts are text of a word per token of the trace: the server has no /tokenize to measure with"
    whole = "the whole prompt" if settings.aim == "total" else "the text, to which the template adds,"
    how = f"{found.tokens_per_word:.3f} tokens a word, {found.template_tokens} of the template"
    return found, f"prompts are text, so long that {whole} has the trace's tokens ({how})"


def prompt_maker(settings: ReplaySettings, measure: Measure) -> PromptMaker:
    """How prompts are made."""
    seed = settings.load.seed
    if settings.as_text:
        return lambda request: text(request, measure, settings.aim, seed)
    return lambda request: token_ids(request, settings.vocabulary, seed)


def preparer(endpoint: Endpoint, prompt: PromptMaker, new_id: Callable[[], str] = lambda: token_hex(4)) -> Prepare:
    """Makes requests ready under ids that no other replay has."""
    run_id = new_id()

    def prepare(request: TraceRequest, index: int) -> Prepared:
        return prepared(request, f"replay-{run_id}-{index}", endpoint, prompt(request))

    return prepare
