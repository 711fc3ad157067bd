"""Puts the router together: which object is given which others."""

from collections.abc import Callable
from dataclasses import dataclass

from aiohttp import web

from kairos_router import cors
from kairos_router.access_log import AccessLog
from kairos_router.admission import Admission
from kairos_router.app import Front, add_routes
from kairos_router.breaker import Breakers, BreakerState
from kairos_router.config import RouterConfig
from kairos_router.drain import Drain
from kairos_router.front_door import FrontDoor
from kairos_router.handles import HandleBook
from kairos_router.intake import Intake
from kairos_router.key_check import KeyCheck
from kairos_router.ledger import Ledger
from kairos_router.legs import Legs
from kairos_router.metrics import RouterMetrics
from kairos_router.operator_routes import OperatorRoutes, WorkerAdmin
from kairos_router.passthrough import Passthrough
from kairos_router.placement import Placement
from kairos_router.registry import Cause, Worker, WorkerRegistry
from kairos_router.release import HandleReleaser
from kairos_router.router import FlowSettings, Router, View
from kairos_router.tokenizer import PromptTokenizer
from kairos_router.tokens import TokenCounter
from kairos_router.tracing import Tracer
from kairos_router.upstream import Upstream
from vllm_kairos.core.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The objects of one router that others need to reach."""

    config: RouterConfig
    view: View
    workers: WorkerRegistry
    breakers: Breakers
    metrics: RouterMetrics
    access_log: AccessLog
    tokens: TokenCounter
    handles: HandleBook
    placement: Placement
    releaser: HandleReleaser
    intake: Intake
    router: Router
    front: Front
    drain: Drain
    keys: KeyCheck | None
    clock: Callable[[], float]
    router_id: str

    def app(self, admin: WorkerAdmin) -> web.Application:
        """The application that clients and operators talk to."""
        app = web.Application(client_max_size=self.config.limits.max_payload_bytes)
        cors.allow(app, self.config.cors_allowed_origins)
        self._operator_routes(admin).add_to(app)
        add_routes(app, self.front)
        return app

    def door(self, runner: web.AppRunner) -> FrontDoor:
        """What takes clients' connections; `runner` has the application and is set up."""
        assert runner.server is not None
        return FrontDoor(self.front.take, runner.server, limit_bytes=self.config.limits.max_payload_bytes)

    def _operator_routes(self, admin: WorkerAdmin) -> OperatorRoutes:
        return OperatorRoutes(
            admin=admin,
            workers=self.workers,
            view=self.view,
            metrics=self.metrics,
            drain=self.drain,
            clock=self.clock,
            needs_prefill=self.config.deflect.prefill_unavailable == "fail",
            api_key=self.config.api_key,
            keys=self.keys,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """What most of the objects are given."""

    config: RouterConfig
    view: View
    upstream: Upstream
    clock: Callable[[], float]
    metrics: RouterMetrics
    workers: WorkerRegistry
    breakers: Breakers
    handles: HandleBook
    keys: KeyCheck | None


def build_parts(
    config: RouterConfig,
    *,
    view: View,
    policy: Policy,
    upstream: Upstream,
    access_log: AccessLog,
    clock: Callable[[], float],
    tokenizer: PromptTokenizer | None = None,
    tracer: Tracer | None = None,
    router_id: str = "",
) -> Parts:
    """Build a router; nothing is started and no worker is registered.

    `router_id` is the name under which nodes know it, of no other process, "" where it spends no leases.
    """
    shared = _share(config, view, upstream, clock)
    metrics, workers = shared.metrics, shared.workers
    tokens = TokenCounter(config.tokens, tokenizer)
    placement = Placement(policy=policy, view=view, workers=workers, metrics=metrics, clock=clock)
    releaser = HandleReleaser(upstream=upstream, metrics=metrics, pick_decode=placement.pick_decode, api_key=config.api_key)
    intake = Intake(tokens=tokens, workers=workers, deflect=config.deflect)
    router = _router(shared, intake, placement, releaser, router_id)
    drain = Drain()
    ledger = Ledger(metrics=metrics, access_log=access_log, clock=clock, tracer=tracer)
    return Parts(
        config=config,
        view=view,
        workers=workers,
        breakers=shared.breakers,
        metrics=metrics,
        access_log=access_log,
        tokens=tokens,
        handles=shared.handles,
        placement=placement,
        releaser=releaser,
        intake=intake,
        router=router,
        front=_front(shared, router, _passthrough(shared, placement), drain, ledger),
        drain=drain,
        keys=shared.keys,
        clock=clock,
        router_id=router_id,
    )


def _share(config: RouterConfig, view: View, upstream: Upstream, clock: Callable[[], float]) -> _Shared:
    metrics = RouterMetrics(compat=config.compat_metrics)
    workers = WorkerRegistry(view)
    return _Shared(
        config=config,
        view=view,
        upstream=upstream,
        clock=clock,
        metrics=metrics,
        workers=workers,
        breakers=_breakers(config, workers, metrics),
        handles=HandleBook(max_age_s=config.limits.kv_lease_s - config.limits.kv_lease_margin_s),
        keys=KeyCheck(config.keys, upstream=upstream, clock=clock, own_key=config.api_key) if config.keys.urls else None,
    )


def _router(shared: _Shared, intake: Intake, placement: Placement, releaser: HandleReleaser, router_id: str) -> Router:
    config = shared.config
    legs = Legs(
        upstream=shared.upstream,
        workers=shared.workers,
        breakers=shared.breakers,
        metrics=shared.metrics,
        handles=shared.handles,
        clock=shared.clock,
        api_key=config.api_key,
    )
    return Router(
        intake=intake,
        placement=placement,
        legs=legs,
        view=shared.view,
        handles=shared.handles,
        releaser=releaser,
        metrics=shared.metrics,
        clock=shared.clock,
        settings=FlowSettings(
            router_id=router_id,
            request_timeout_s=config.limits.request_timeout_s,
            retry=config.retry,
            decision_headers=config.decision_headers,
        ),
    )


def _passthrough(shared: _Shared, placement: Placement) -> Passthrough:
    return Passthrough(
        upstream=shared.upstream,
        placement=placement,
        breakers=shared.breakers,
        metrics=shared.metrics,
        clock=shared.clock,
        request_timeout_s=shared.config.limits.request_timeout_s,
        api_key=shared.config.api_key,
    )


def _front(shared: _Shared, router: Router, passthrough: Passthrough, drain: Drain, ledger: Ledger) -> Front:
    limits = shared.config.limits
    return Front(
        router=router,
        passthrough=passthrough,
        admission=Admission(limits, shared.metrics, shared.clock),
        ledger=ledger,
        drain=drain,
        keys=shared.keys,
        replace_key=shared.config.api_key is not None,
        request_id_headers=shared.config.request_id_headers,
        body_timeout_s=limits.request_timeout_s,
    )


def _breakers(config: RouterConfig, workers: WorkerRegistry, metrics: RouterMetrics) -> Breakers:
    def moved(name: str, old: BreakerState, new: BreakerState) -> None:
        worker: Worker | None = workers.find(name)
        if worker is None:
            return
        metrics.breaker_moved(worker, old, new)
        if new is BreakerState.OPEN:
            workers.block(name, Cause.BREAKER)
        else:
            workers.unblock(name, Cause.BREAKER)

    return Breakers(config.breaker, moved)
