"""A whole router in front of stub servers, its policy and view replaced by simple ones that tests can read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from time import monotonic
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from kairos_router.access_log import AccessLog
from kairos_router.config import LimitSettings, PrefillTarget, RetrySettings, RouterConfig
from kairos_router.front_door import FrontDoor
from kairos_router.http_upstream import HttpUpstream
from kairos_router.parts import Parts, build_parts
from kairos_router.registry import Worker, WorkerRegistry
from kairos_router.serve import bind
from kairos_router.tracing import Tracer
from tests.router.stubs import Script, Stub, decode_server, prefilled, running
from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule
from vllm_kairos.core.decision import Assign, Decision, Reason, Reject, RejectReason
from vllm_kairos.core.events import AcceptingChanged, Dispatched, Ended, Event, NodeAdded, NodeRemoved
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import RequestShape, Route

SCHEDULE = ChunkSchedule((ChunkRun(128, 2),))


@dataclass(slots=True)
class OpenView:
    """A view that knows only which nodes exist and what is open on them."""

    known: dict[str, NodeState] = field(default_factory=dict)
    open: dict[str, Dispatched] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def apply(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case NodeAdded():
                self.known[event.node_id] = NodeState(node_id=event.node_id, role=event.role)
            case NodeRemoved():
                del self.known[event.node_id]
            case AcceptingChanged():
                self.known[event.node_id] = replace(self.known[event.node_id], accepting=event.accepting)
            case Dispatched():
                assert event.request_id not in self.open
                self.open[event.request_id] = event
            case Ended():
                del self.open[event.request_id]

    def nodes(self, now_s: float) -> tuple[NodeState, ...]:
        return tuple(self.known.values())


@dataclass(slots=True)
class TwoLegs:
    """Two legs where a prefill node accepts, nodes in turn; local when forced or when there is none."""

    name: str = "two-legs"
    schedule: ChunkSchedule = SCHEDULE
    local_when_no_prefill: bool = True
    asked: list[RequestShape] = field(default_factory=list)

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        self.asked.append(request)
        prefill = [node.node_id for node in nodes if node.accepting and node.role.prefills]
        decode = [node.node_id for node in nodes if node.accepting and node.role.decodes]
        if not decode:
            return Reject(reason=RejectReason.NO_DECODE_NODE, retry_after_s=2.0)
        decode_node = decode[len(self.asked) % len(decode)]
        if request.forced_route is Route.LOCAL:
            return self._local(decode_node, request.forced_reason)
        if not prefill:
            return (
                self._local(decode_node, Reason.PREFILL_UNAVAILABLE)
                if self.local_when_no_prefill
                else Reject(reason=RejectReason.NO_SAFE_NODE, retry_after_s=2.0)
            )
        prefill_node = request.pinned_prefill_node or prefill[len(self.asked) % len(prefill)]
        return Assign(
            route=Route.REMOTE,
            decode_node=decode_node,
            prefill_node=prefill_node,
            reason=Reason.PREFILL_SOONER,
            remote_ttft_s=0.2,
            local_ttft_s=0.4,
        )

    def _local(self, decode_node: str, reason: str) -> Assign:
        return Assign(
            route=Route.LOCAL,
            decode_node=decode_node,
            prefill_node=None,
            reason=reason,
            schedule=self.schedule,
            local_ttft_s=0.4,
        )


@dataclass(slots=True, kw_only=True)
class Cluster:
    """What a test needs of the running router."""

    url: str
    prefill: list[Stub]
    decode: list[Stub]
    session: aiohttp.ClientSession
    parts: Parts
    view: OpenView
    policy: TwoLegs
    log: BytesIO
    door: FrontDoor

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Send one request; return status and decoded JSON."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url + path, json=body, headers=names) as response:
            return response.status, msgspec.json.decode(await response.read())

    async def complete(self, **body: Any) -> tuple[int, Any]:
        return await self.post("/v1/completions", {"model": "m", "prompt": "hi", "max_tokens": 5, **body})

    async def chat(self, **body: Any) -> tuple[int, Any]:
        return await self.post("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body})

    def records(self) -> list[dict[str, Any]]:
        """The access log so far."""
        self.parts.access_log.flush()
        return [msgspec.json.decode(line) for line in self.log.getvalue().splitlines()]

    def metric(self, series: str) -> float:
        """One series' value, its labels written as Prometheus shows them; 0 when absent."""
        for line in self.parts.metrics.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0


@dataclass(slots=True)
class RegistryAdmin:
    """Adds and removes workers without asking them anything."""

    workers: WorkerRegistry

    async def add(self, raw_url: str, role: Role, bootstrap_port: int | None = None) -> Worker:
        worker = Worker(name=raw_url.removeprefix("http://"), role=role, url=raw_url, bootstrap_port=bootstrap_port)
        self.workers.add(worker)
        return worker

    async def remove(self, name: str) -> Worker:
        return self.workers.remove(name)


QUICK = RetrySettings(initial_backoff_s=0.001, max_backoff_s=0.01)


@asynccontextmanager
async def cluster(
    *,
    prefill: Sequence[Script] = (lambda received: prefilled(),),
    decode: Sequence[Script] = (decode_server,),
    keepalive_s: float = 75.0,
    **changes: Any,
) -> AsyncIterator[Cluster]:
    """Run stub servers and a router over them; `changes` are RouterConfig fields, and more that `router_over` takes."""
    async with AsyncExitStack() as stack:
        stub_p = [await stack.enter_async_context(running(script, keepalive_s=keepalive_s)) for script in prefill]
        stub_d = [await stack.enter_async_context(running(script, keepalive_s=keepalive_s)) for script in decode]
        yield await stack.enter_async_context(router_over(stub_p, stub_d, **changes))


@asynccontextmanager
async def router_over(
    prefill: list[Stub],
    decode: list[Stub],
    tracer: Tracer | None = None,
    view: Any = None,
    policy: Any = None,
    router_id: str = "",
    **changes: Any,
) -> AsyncIterator[Cluster]:
    """Run a router over stubs that run already; `view` and `policy` replace the simple ones."""
    settings = {"retry": QUICK, "limits": LimitSettings(), **changes}
    config = RouterConfig(
        prefill=tuple(PrefillTarget(url=stub.url) for stub in prefill), decode=tuple(stub.url for stub in decode), **settings
    )
    view, policy, log = view or OpenView(), policy or TwoLegs(), BytesIO()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(HttpUpstream())
        given = {"view": view, "policy": policy, "tracer": tracer, "router_id": router_id}
        parts = build_parts(config, upstream=upstream, access_log=AccessLog(log), clock=monotonic, **given)
        for role, stubs in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
            for stub in stubs:
                parts.workers.add(Worker(name=stub.name, role=role, url=stub.url))
        runner = web.AppRunner(
            parts.app(RegistryAdmin(parts.workers)), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        bound = bind("--port", "127.0.0.1", 0)
        door = parts.door(runner)
        await door.open(bound, 128)
        stack.push_async_callback(door.close, 0.1)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Cluster(
            url=f"http://127.0.0.1:{bound.getsockname()[1]}",
            prefill=prefill,
            decode=decode,
            session=session,
            parts=parts,
            view=view,
            policy=policy,
            log=log,
            door=door,
        )
        await parts.releaser.settle()
    assert not (view.open if isinstance(view, OpenView) else view.tracked_requests), "a reservation was not released"


async def until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until `holds()`; a generous limit, since the machine may be busy."""
    deadline_s = monotonic() + limit_s
    for _ in iter(holds, True):
        assert monotonic() < deadline_s, "did not come true in time"
        await asyncio.sleep(0.002)


async def read_to_break(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Read a body as far as it comes; return it and whether it reached its end."""
    got = b""
    try:
        async for chunk in response.content.iter_any():
            got += chunk
    except aiohttp.ClientPayloadError:
        return got, False
    return got, True
