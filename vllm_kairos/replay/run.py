"""One replay, from settings to samples."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from vllm_kairos.replay.discovery import base_url, first_model
from vllm_kairos.replay.endpoint import Endpoint, Prepared, PromptMaker, prepared
from vllm_kairos.replay.http_sender import HttpSender
from vllm_kairos.replay.open_loop import Observer, OpenLoop, Prepare, Replayed
from vllm_kairos.replay.prompts import token_ids
from vllm_kairos.replay.settings import ReplaySettings
from vllm_kairos.workload.request import TraceRequest, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a replay."""

    endpoint: Endpoint
    replayed: Replayed
    wall_s: float
    interrupted: bool


async def replay(settings: ReplaySettings, workload: Workload, observer: Observer, stop: asyncio.Event) -> Outcome:
    """Send the workload to the endpoint. Raises ConfigError when the endpoint cannot be asked what it serves."""
    endpoint = await resolve_endpoint(settings)
    loop = asyncio.get_running_loop()
    async with HttpSender(endpoint, timeout_s=settings.timeout_s) as sender:
        open_loop = OpenLoop(
            workload.requests,
            ramp_s=settings.load.ramp_s,
            prepare=preparer(endpoint, prompt_maker(settings)),
            sender=sender,
            observer=observer,
        )
        started_s = loop.time()
        replayed = await open_loop.run(stop)
        wall_s = loop.time() - started_s
    return Outcome(endpoint=endpoint, replayed=replayed, wall_s=wall_s, interrupted=stop.is_set())


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


def prompt_maker(settings: ReplaySettings) -> PromptMaker:
    """How prompts are made."""
    return lambda request: token_ids(request, settings.vocabulary, settings.load.seed)


def preparer(endpoint: Endpoint, prompt: PromptMaker, new_id: Callable[[], str] = lambda: token_hex(4)) -> Prepare:
    """Makes requests ready under ids that no other replay has."""
    run_id = new_id()

    def prepare(request: TraceRequest, index: int) -> Prepared:
        return prepared(request, f"replay-{run_id}-{index}", endpoint, prompt(request))

    return prepare
