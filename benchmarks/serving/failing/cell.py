"""One cell: a router is started, the load replayed, the failure injected, every answer judged; then all is mended."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp

from benchmarks.serving.contenders import Contender, Programs, free_ports, front_plan
from benchmarks.serving.failing.expected import Model
from benchmarks.serving.failing.front import FrontProcess
from benchmarks.serving.failing.handoff import use_up_faults
from benchmarks.serving.failing.record import summary
from benchmarks.serving.failing.scenarios import AFTER_RETURN_S, Scenario
from benchmarks.serving.failing.stage import Stage
from benchmarks.serving.failing.steady import steady
from benchmarks.serving.failing.transcript import NOT_SENT, RecordingSender
from benchmarks.serving.failing.verdict import Judged, judge
from benchmarks.serving.ready import answers
from benchmarks.serving.servers import wait_idle
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.replay.endpoint import Endpoint
from vllm_kairos.replay.http_sender import HttpSender
from vllm_kairos.replay.open_loop import OpenLoop
from vllm_kairos.replay.prompts import Vocabulary, token_ids
from vllm_kairos.replay.run import preparer
from vllm_kairos.replay.sample import Sample
from vllm_kairos.workload.request import TraceRequest

TIMEOUT_S = 60.0
"""A request without a whole answer by then counts as lost; a healthy one takes less than 10."""
_IDLE_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells share."""

    spec: ClusterSpec
    programs: Programs
    model: Model
    rate_rps: float
    out: Path


class _Started:
    """Observes a replay for the moment at which it began."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.event = asyncio.Event()

    def waiting(self, now_s: float, due_s: float) -> None: ...

    def sent(self, lag_s: float) -> None:
        """The first request is due at 0."""
        if not self.event.is_set():
            self._stage.started_s = time.perf_counter() - lag_s
            self.event.set()

    def ended(self, sample: Sample) -> None: ...


async def run_cell(
    bench: Bench, cluster: LocalCluster, contender: Contender, scenario: Scenario, repeat: int
) -> dict[str, Any]:
    """The cell's record. Raises ClusterError when a router does not start or servers cannot be mended."""
    key = f"{scenario.name}-{contender.name}-r{repeat}"
    urls = [server.url for server in cluster.plan.servers]
    async with aiohttp.ClientSession() as session:
        await mend(cluster, session)
        await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
        record = await _replayed(bench, cluster, contender, scenario, repeat, key, session)
        await mend(cluster, session)
        await use_up_faults(session, cluster.plan, repeat)
    return {"scenario": scenario.name, "contender": contender.name, "repeat": repeat} | record


async def mend(cluster: LocalCluster, session: aiohttp.ClientSession) -> None:
    """Start those servers again that do not answer."""
    for server in cluster.plan.servers:
        if not await answers(session, f"{server.url}/health"):
            await cluster.restart(server.name)


async def _replayed(
    bench: Bench,
    cluster: LocalCluster,
    contender: Contender,
    scenario: Scenario,
    repeat: int,
    key: str,
    session: aiohttp.ClientSession,
) -> dict[str, Any]:
    seed = crc32(key.encode())
    async with AsyncExitStack() as stack:
        endpoint = Endpoint(url="", model=cluster.plan.served_model_name)
        sender = RecordingSender()

        async def new_front() -> FrontProcess:
            return await stack.enter_async_context(_front(bench, cluster, contender, key, sender, session))

        stage = Stage(
            cluster=cluster,
            session=session,
            front=await new_front(),
            new_front=new_front,
            repeat=repeat,
        )
        started = _Started(stage)
        workload = steady(rate_rps=bench.rate_rps, duration_s=scenario.duration_s, seed=repeat)
        replay = OpenLoop(
            workload.requests,
            ramp_s=0.0,
            prepare=preparer(endpoint, lambda request: _prompt(bench.model, request, seed)),
            sender=sender,
            observer=started,
        )
        stop = asyncio.Event()
        acting = asyncio.create_task(_act(stage, scenario, started.event, sender, stop))
        acting.add_done_callback(lambda task: stop.set() if task.cancelled() or task.exception() else None)
        try:
            replayed = await replay.run(stop)
            await acting
        finally:
            acting.cancel()
        sent = (sample for sample in replayed.samples if sample.error != NOT_SENT)
        judged = [_judged(bench.model, sender, sample, seed) for sample in sent]
        return summary(judged, scenario, stage.moments) | {"router_counters": await stage.front.counters(session)}


@asynccontextmanager
async def _front(
    bench: Bench,
    cluster: LocalCluster,
    contender: Contender,
    key: str,
    sender: RecordingSender,
    session: aiohttp.ClientSession,
) -> AsyncIterator[FrontProcess]:
    """A router that serves, with requests going to it from now on; ended after the block."""
    ports = free_ports(contender)
    log_dir = bench.out / "logs" / key
    log_dir.mkdir(parents=True, exist_ok=True)
    plan = front_plan(contender, bench.spec, cluster.plan, bench.programs, ports=ports, log_dir=log_dir)
    front = FrontProcess(contender, plan, ports[1], log_dir / f"front-{ports[0]}.log")
    try:
        await front.ready(session)
        endpoint = Endpoint(url=front.url, model=cluster.plan.served_model_name)
        async with HttpSender(endpoint, timeout_s=TIMEOUT_S) as target:
            sender.target = target
            yield front
    finally:
        await asyncio.to_thread(front.stop)


async def _act(stage: Stage, scenario: Scenario, started: asyncio.Event, sender: RecordingSender, stop: asyncio.Event) -> None:
    """Have the failure happen; where a server came back, end the load a while after that."""
    await started.wait()
    await stage.until(scenario.fault_s)
    stage.note("fault")
    await scenario.act(stage, scenario)
    if scenario.back_s is not None:
        await stage.until(stage.now_s() + AFTER_RETURN_S)
        await sender.close()
        stop.set()


def _judged(model: Model, sender: RecordingSender, sample: Sample, seed: int) -> Judged:
    expected = model.answer(_prompt(model, sample.request, seed), sample.request.output_tokens)
    return Judged(sample=sample, verdict=judge(sample, sender.words(sample.sent_id), expected))


def _prompt(model: Model, request: TraceRequest, seed: int) -> list[int]:
    return model.closed(token_ids(request, Vocabulary(), seed))
