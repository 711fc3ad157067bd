"""From a RouterConfig to a router that serves until it is told to stop."""

import asyncio
import gc
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING
from uuid import uuid4

import aiohttp
from aiohttp import web

from kairos_router.access_log import AccessLog
from kairos_router.config import RouterConfig
from kairos_router.discovery import Prober
from kairos_router.fleet import Fleet
from kairos_router.http_upstream import HttpUpstream
from kairos_router.metrics import CONTENT_TYPE, RouterMetrics
from kairos_router.node_feed import FeedIntake, FeedSubscriber
from kairos_router.parts import Parts, build_parts
from kairos_router.registry import Worker, default_name
from kairos_router.selection import select
from kairos_router.tokenizer import load_tokenizer
from vllm_kairos.core.node import Role
from vllm_kairos.core.policies.registry import make_policy, spends_leases
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.view import ClusterView
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import Profile, load_profile

if TYPE_CHECKING:
    from kairos_router.otel import OtelTracer

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiles:
    """The latency profiles of both roles, None where none was given."""

    prefill: Profile | None
    decode: Profile | None

    def models(self) -> dict[Role, tuple[str, str]]:
        """Role -> what to call the flag, and the model that the profile was measured on."""
        given = {Role.PREFILL: self.prefill, Role.DECODE: self.decode}
        return {role: (f"--profile ({role})", profile.model) for role, profile in given.items() if profile}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What was read and opened before anything starts, so that mistakes show at once."""

    config: RouterConfig
    profiles: Profiles
    key: bytes | None
    main: socket.socket
    metrics: socket.socket


def read_profiles(config: RouterConfig) -> Profiles:
    """Load the profiles; raises ProfileError."""
    paths = (config.deflect.prefill_profile, config.deflect.decode_profile)
    loaded = {path: load_profile(path) for path in paths if path is not None}
    prefill, decode = (None if path is None else loaded[path] for path in paths)
    return Profiles(prefill=prefill, decode=decode)


def read_key(file: Path | None) -> bytes | None:
    """Read the shared key of the node states; raises ConfigError."""
    if file is None:
        return None
    try:
        key = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--state-key-file must be readable, got {str(file)!r} ({error.strerror})") from error
    if len(key) < _MIN_KEY_BYTES:
        raise ConfigError(f"--state-key-file {file} must hold at least {_MIN_KEY_BYTES} bytes, got {len(key)}")
    return key


_MIN_KEY_BYTES = 16
_BACKLOG = 1024
_GRACE_S = 1.0  # after the drain


def bind(flag: str, host: str, port: int) -> socket.socket:
    """Bind, without listening, so that a port in use is found before anything starts; raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no host name"
        raise ConfigError(f"{flag} host must be an address of this machine, got {host!r} ({reason})") from error
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(f"{flag} must be free on {host}, got {port} ({error.strerror})") from error
    return bound


def build_policy(config: RouterConfig, profiles: Profiles) -> Policy:
    """Build the configured policy; raises ConfigError."""
    deflect = config.deflect
    settings = DecisionSettings(
        alpha=deflect.alpha,
        beta=deflect.beta,
        chunk_candidates_tokens=deflect.chunk_candidates_tokens,
        deflection_slot_share=deflect.slot_share,
        deflections_per_node=deflect.per_node,
        static_chunk_tokens=deflect.static_chunk_tokens,
        unplanned_chunk_tokens=deflect.unplanned_chunk_tokens,
        default_bandwidth_bytes_per_s=deflect.default_bandwidth_bytes_per_s,
        kv_bytes_per_token=profiles.decode.kv_bytes_per_token if profiles.decode else 0,
        prefill_unavailable=deflect.prefill_unavailable,
    )
    policy = make_policy(
        deflect.policy,
        prefill_model=profiles.prefill.step_model if profiles.prefill else None,
        decode_model=profiles.decode.step_model if profiles.decode else None,
        settings=settings,
    )
    return select(policy, prefill_rule=deflect.prefill_policy, decode_rule=deflect.decode_policy)


def new_router_id() -> str:
    """A name that no other process has: each spends its own share of a lease, also of one router's several processes."""
    return uuid4().hex


def open_tracer(endpoint: str) -> "OtelTracer":
    """Begin to export spans; raises ConfigError where the packages are missing."""
    try:
        from kairos_router import otel
    except ImportError as error:
        raise ConfigError(f"--enable-trace needs the extra `trace`: pip install 'vllm-kairos[trace]' ({error})") from error
    return otel.open_tracer(endpoint)


def workers_of(config: RouterConfig) -> tuple[Worker, ...]:
    """The servers named by flags, under names that last until they say their own."""
    prefill = tuple(
        Worker(name=default_name(target.url), role=Role.PREFILL, url=target.url, bootstrap_port=target.bootstrap_port)
        for target in config.prefill
    )
    return prefill + tuple(Worker(name=default_name(url), role=Role.DECODE, url=url) for url in config.decode)


async def serve(inputs: Inputs, access_log: AccessLog) -> None:
    """Serve until SIGTERM or SIGINT, then drain; raises KairosError when the servers do not come up or fit."""
    stop = _stop_event()
    # Not the loop's clock: uvloop's stands still within a turn and counts whole milliseconds.
    async with _running(inputs, access_log, monotonic) as (parts, fleet):
        starting = asyncio.create_task(fleet.start(workers_of(inputs.config)), name="start-up")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        _calm_collector()
        async with _listening(inputs, parts, fleet):
            await stopping
            left = await parts.drain.finish(inputs.config.limits.drain_timeout_s)
            if left:
                _LOG.warning("stopped with %d requests unfinished after %g s", left, inputs.config.limits.drain_timeout_s)


def _calm_collector() -> None:
    """Requests leave no cycles to speak of: collect rarely, and never look at what start-up made (about 8 % of the CPU)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _stop_event() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


@asynccontextmanager
async def _running(inputs: Inputs, access_log: AccessLog, clock: Callable[[], float]) -> AsyncIterator[tuple[Parts, Fleet]]:
    config, profiles = inputs.config, inputs.profiles
    directory = config.tokens.tokenizer_dir
    async with AsyncExitStack() as stack:
        tracer = open_tracer(config.traces_endpoint) if config.traces_endpoint else None
        if tracer is not None:
            stack.push_async_callback(tracer.close)
        view = ClusterView(stale_after_s=config.feed.stale_after_s)
        policy = build_policy(config, profiles)
        parts = build_parts(
            config,
            view=view,
            policy=policy,
            router_id=new_router_id() if spends_leases(policy) else "",
            upstream=await stack.enter_async_context(HttpUpstream()),
            access_log=access_log,
            clock=clock,
            tokenizer=load_tokenizer(directory) if directory else None,
            tracer=tracer,
        )
        stack.callback(access_log.close)
        stack.callback(parts.tokens.close)
        stack.push_async_callback(parts.releaser.settle)
        parts.metrics.watch(lambda: view.nodes(clock()), clock)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        fleet = _fleet(inputs, parts, session)
        stack.push_async_callback(fleet.close)
        yield parts, fleet


def _fleet(inputs: Inputs, parts: Parts, session: aiohttp.ClientSession) -> Fleet:
    config, profiles = inputs.config, inputs.profiles
    given = {Role.PREFILL: profiles.prefill, Role.DECODE: profiles.decode}
    intake = FeedIntake(
        view=parts.view,
        registry=parts.workers,
        metrics=parts.metrics,
        key=inputs.key,
        router_id=parts.router_id,
        models={role: profile.step_model for role, profile in given.items() if profile},
    )

    def forget(worker: Worker) -> None:
        intake.forget(worker)
        for node_id in worker.node_ids:
            parts.handles.forget(node_id)

    fleet = Fleet(
        registry=parts.workers,
        prober=Prober(session, timeout_s=config.health.timeout_s, api_key=config.api_key),
        subscriber=FeedSubscriber(intake, parts.clock, router_id=parts.router_id),
        breakers=parts.breakers,
        metrics=parts.metrics,
        health=config.health,
        feed=config.feed,
        now_s=parts.clock,
        profiles=profiles.models(),
        on_removed=forget,
    )

    def restarted(name: str) -> None:
        for node_id in parts.workers.get(name).node_ids:
            parts.handles.restarted(node_id)
        fleet.restarted(name)

    def model_length_tokens() -> int | None:
        facts = (fleet.facts(worker.name) for worker in parts.workers.all() if worker.role.decodes)
        return min((said.max_model_len_tokens for said in facts if said and said.max_model_len_tokens), default=None)

    intake.on_restart = restarted
    parts.intake.model_length_tokens = model_length_tokens
    return fleet


@asynccontextmanager
async def _listening(inputs: Inputs, parts: Parts, fleet: Fleet) -> AsyncIterator[None]:
    async with _running_app(parts.app(fleet)) as runner, _running_app(metrics_app(parts.metrics)) as metrics:
        _listen(inputs.main)
        _listen(inputs.metrics)
        await web.SockSite(metrics, inputs.metrics, backlog=_BACKLOG).start()
        door = parts.door(runner)
        await door.open(inputs.main, _BACKLOG)
        host, port = inputs.main.getsockname()[:2]
        policy = inputs.config.deflect.policy
        _LOG.info("serving %d servers on %s:%d with policy %s", len(parts.workers.all()), host, port, policy)
        try:
            yield
        finally:
            await door.close(_GRACE_S)


@asynccontextmanager
async def _running_app(app: web.Application) -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_GRACE_S)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()


def _listen(bound: socket.socket) -> None:
    """Listen on `bound`; raises ConfigError where another socket, bound to the same port, listens by now."""
    try:
        bound.listen(_BACKLOG)  # the event loop would keep a failure to itself
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise ConfigError(f"port must be free on {host}, got {port} ({error.strerror})") from error


def metrics_app(metrics: RouterMetrics) -> web.Application:
    """The application of the metrics port."""

    async def show(_: web.Request) -> web.Response:
        return web.Response(body=metrics.render(), headers={"content-type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", show)
    return app
