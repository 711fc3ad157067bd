"""The servers over time: found, checked, followed, taken out and taken back."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kairos_router import wiring
from kairos_router.breaker import Breakers
from kairos_router.config import FeedSettings, HealthSettings
from kairos_router.discovery import NodeFacts, ProbeError, Prober, reachable_endpoint
from kairos_router.health import HealthRecord
from kairos_router.metrics import RouterMetrics
from kairos_router.node_feed import FeedSubscriber
from kairos_router.registry import Cause, Worker, WorkerRegistry, checked_runtime_url, default_name
from vllm_kairos.core.node import Role
from vllm_kairos.errors import ConfigError, RequestError

_LOG = logging.getLogger(__name__)
_STRAGGLER_GRACE_S = 10.0
"""With each role served, a start waits this much longer for the rest."""
_BREAKER_TICK_S = 0.5
_MAX_NAME_CHARS = 256


@dataclass(slots=True)
class _Watched:
    """What the fleet keeps of one server, by URL: its name may change once it says its own."""

    record: HealthRecord
    facts: NodeFacts | None = None
    fault: str = ""  # why its last check failed
    recheck: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Fleet:
    """Keeps the registry true to what the servers say and do."""

    def __init__(
        self,
        *,
        registry: WorkerRegistry,
        prober: Prober,
        subscriber: FeedSubscriber,
        breakers: Breakers,
        metrics: RouterMetrics,
        health: HealthSettings,
        feed: FeedSettings,
        now_s: Callable[[], float],
        profiles: Mapping[Role, tuple[str, str]],  # role -> (flag, model of its profile)
        on_removed: Callable[[Worker], None] = lambda worker: None,
    ) -> None:
        self._registry = registry
        self._prober = prober
        self._subscriber = subscriber
        self._breakers = breakers
        self._metrics = metrics
        self._health = health
        self._feed = feed
        self._now_s = now_s
        self._profiles = profiles
        self._on_removed = on_removed
        self._watched: dict[str, _Watched] = {}
        self._models: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving = False
        self._endpoints_unsettled = False  # a --state-endpoint names nobody yet, and not every server has said its name

    @property
    def models(self) -> frozenset[str]:
        """The names of the model that this fleet serves; empty until a server said."""
        return self._models

    def facts(self, name: str) -> NodeFacts | None:
        """What the worker last said of itself."""
        watched = self._watched.get(self._registry.get(name).url)
        return None if watched is None else watched.facts

    async def start(self, workers: tuple[Worker, ...]) -> None:
        """Watch `workers` and return when they serve.

        Raises ConfigError for servers that do not fit together, and when a role has no healthy server
        after the start-up timeout.
        """
        for worker in workers:
            self._registry.add(worker, causes=frozenset({Cause.STARTING}))
            self._watch(worker.url)
        self._spawn(self._tick_breakers(), "breakers")
        await self._wait_until_up()
        self._check_wiring()
        self._check_endpoints()
        self._serving = True

    async def add(self, raw_url: str, role: Role, bootstrap_port: int | None = None) -> Worker:
        """Add a server at run time once it is healthy and fits; raises RequestError that says what is wrong."""
        url = checked_runtime_url(raw_url)
        if self._registry.by_url(url) is not None:
            raise RequestError(f"url must not be registered already, got {raw_url!r}")
        worker = Worker(name=default_name(url), role=role, url=url, bootstrap_port=bootstrap_port)
        try:
            await self._prober.health(url, self._health.endpoint)
            facts = await self._prober.facts(url)
        except ProbeError as error:
            raise RequestError(f"url must be a healthy server, got {raw_url!r} ({error})") from error
        fault = self._fault(worker, facts)
        if fault:
            raise RequestError(fault)
        try:
            self._registry.add(worker, causes=frozenset({Cause.STARTING}))
        except ConfigError as error:
            raise RequestError(str(error)) from error
        watched = self._watch(url)
        self._note_result(url, watched, "")
        await self._take_facts(url, watched, facts)
        return self._known(url)

    async def remove(self, name: str) -> Worker:
        """Forget a server; what runs there goes on. Raises RequestError for an unknown name."""
        worker = self._registry.remove(name)
        watched = self._watched.pop(worker.url, None)
        if watched is not None and watched.task is not None:
            watched.task.cancel()
        await self._subscriber.leave(name)
        self._forget(worker)
        return worker

    def restarted(self, name: str) -> None:
        """A worker's engine started anew: it takes requests from its first passed check on, which begins at once.

        The engine is there before its HTTP server is. What its predecessor failed is not held against it.
        """
        worker = self._registry.find(name)
        watched = self._watched.get(worker.url) if worker else None
        if watched is not None:
            watched.record = HealthRecord(self._health)
            self._registry.block(name, Cause.STARTING)
            self._breakers.reset(name)
            watched.recheck.set()

    async def close(self) -> None:
        """Stop every task."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._subscriber.close()

    # watching

    def _watch(self, url: str) -> _Watched:
        watched = self._watched[url] = _Watched(HealthRecord(self._health))
        watched.task = self._spawn(self._watch_one(url, watched), f"health of {url}")
        return watched

    async def _watch_one(self, url: str, watched: _Watched) -> None:
        while self._registry.by_url(url) is not None:
            watched.recheck.clear()
            await self._check(url, watched)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watched.recheck.wait(), watched.record.next_check_s)

    async def _check(self, url: str, watched: _Watched) -> None:
        try:
            await self._prober.health(url, self._health.endpoint)
            facts = await self._prober.facts(url)
        except ProbeError as error:
            self._note_result(url, watched, str(error))
            return
        with contextlib.suppress(RequestError):  # removed meanwhile
            await self._take_facts(url, watched, facts)
        self._note_result(url, watched, "")

    def _note_result(self, url: str, watched: _Watched, fault: str) -> None:
        worker = self._registry.by_url(url)
        if worker is None:
            return
        watched.fault = fault
        changed = watched.record.record(not fault)
        healthy = watched.record.healthy
        self._metrics.worker_health(worker, healthy=healthy)
        if healthy:
            self._registry.unblock(worker.name, Cause.STARTING)
            self._registry.unblock(worker.name, Cause.UNHEALTHY)
        elif changed:
            self._registry.block(worker.name, Cause.UNHEALTHY)
        if changed:
            level = logging.INFO if healthy else logging.WARNING
            _LOG.log(level, "server %s at %s is %s", worker.name, url, "healthy" if healthy else f"unhealthy: {fault}")

    async def _take_facts(self, url: str, watched: _Watched, facts: NodeFacts) -> None:
        watched.facts = facts
        worker = await self._settle_name(self._known(url), facts)
        fault = self._fault(worker, facts)
        if not fault:
            self._registry.unblock(worker.name, Cause.WIRING)
            self._models = self._models or facts.models
        elif self._serving:
            if Cause.WIRING not in self._registry.causes(worker.name):
                _LOG.error("server %s takes no requests: %s", worker.name, fault)
            self._registry.block(worker.name, Cause.WIRING)
        await self._subscriber.follow(worker.name, self._endpoints(worker, facts))
        self._settle_endpoints()

    async def _settle_name(self, worker: Worker, facts: NodeFacts) -> Worker:
        """Know the worker by the name it gives itself, with as many ranks as it has."""
        name = worker.name if self._name_fault(worker, facts) else _own_name(facts) or worker.name
        if (name, facts.dp_size) == (worker.name, worker.dp_size):
            return worker
        renamed = replace(worker, name=name, dp_size=facts.dp_size)
        self._registry.replace(worker.name, renamed)
        await self._subscriber.leave(worker.name)
        self._forget(worker)
        return renamed

    def _forget(self, worker: Worker) -> None:
        self._breakers.forget(worker.name)
        self._metrics.worker_removed(worker)
        self._on_removed(worker)

    def _name_fault(self, worker: Worker, facts: NodeFacts) -> str:
        taken = self._registry.find(_own_name(facts) or "")
        if taken is None or taken.url == worker.url:
            return ""
        return f"{worker.url} must have a node id of its own, got {taken.name!r}, which is {taken.url}"

    def _endpoints(self, worker: Worker, facts: NodeFacts) -> tuple[str, ...]:
        named = (self._feed.endpoints.get(name) for name in wiring.endpoint_names(worker))
        given = next((endpoints for endpoints in named if endpoints), None)
        if given:
            return given
        found = (reachable_endpoint(endpoint, worker.url) for endpoint in facts.state_endpoints)
        return tuple(endpoint for endpoint in found if endpoint is not None)

    def _known(self, url: str) -> Worker:
        worker = self._registry.by_url(url)
        if worker is None:
            raise RequestError(f"worker must be registered, got {url!r}")
        return worker

    # wiring

    def _fault(self, worker: Worker, facts: NodeFacts) -> str:
        flag, model = self._profiles.get(worker.role, ("", ""))
        faults = [
            self._name_fault(worker, facts),
            wiring.role_fault(worker, facts),
            wiring.model_fault(worker, facts, self._models),
            wiring.profile_fault(flag, model, facts),
        ]
        for other in self._registry.all():
            watched = self._watched.get(other.url)
            if other.url != worker.url and watched is not None and watched.facts is not None:
                faults.append(wiring.block_size_fault(worker, facts, other, watched.facts))
        return next((fault for fault in faults if fault), "")

    def _check_wiring(self) -> None:
        for worker in self._registry.all():
            watched = self._watched[worker.url]
            fault = self._fault(worker, watched.facts) if watched.facts is not None else ""
            if fault:
                raise ConfigError(fault)

    def _check_endpoints(self) -> None:
        fault = wiring.endpoint_fault(self._feed.endpoints, self._registry.all())
        if fault and not self._silent():
            raise ConfigError(fault)
        self._endpoints_unsettled = bool(fault)
        if fault:
            _LOG.warning("%s; it may be a server that is not up yet: %s", fault, ", ".join(self._silent()))

    def _settle_endpoints(self) -> None:
        """Once every server has said its name: an endpoint that still names nobody never will."""
        if self._endpoints_unsettled and not self._silent():
            self._endpoints_unsettled = False
            fault = wiring.endpoint_fault(self._feed.endpoints, self._registry.all())
            if fault:
                _LOG.warning("%s; every server is known by now, so this endpoint is not used", fault)

    def _silent(self) -> list[str]:
        """URLs of the servers that have not said their names."""
        return [url for url, watched in self._watched.items() if watched.facts is None]

    # start-up

    async def _wait_until_up(self) -> None:
        deadline_s = self._now_s() + self._health.startup_timeout_s
        grace_s: float | None = None
        while not self._all_up():
            now_s = self._now_s()
            if grace_s is None and not self._roles_down():
                grace_s = now_s + _STRAGGLER_GRACE_S
            if now_s >= min(deadline_s, grace_s or deadline_s):
                break
            await asyncio.sleep(min(0.05, self._health.startup_check_interval_s))
        self._report_missing()

    def _all_up(self) -> bool:
        return all(watched.record.healthy for watched in self._watched.values())

    def _roles_down(self) -> list[Worker]:
        """Every worker of the roles that have no healthy server."""
        workers = self._registry.all()
        up = {worker.role for worker in workers if self._watched[worker.url].record.healthy}
        return [worker for worker in workers if worker.role not in up]

    def _report_missing(self) -> None:
        down = self._roles_down()
        if down:
            worker, timeout_s = down[0], self._health.startup_timeout_s
            fault = self._watched[worker.url].fault or "no answer"
            raise ConfigError(f"--{worker.role} {worker.url} must become healthy within {timeout_s:g} s, got: {fault}")
        for worker in self._registry.all():
            if not self._watched[worker.url].record.healthy:
                _LOG.warning("serving without %s %s: %s", worker.role, worker.url, self._watched[worker.url].fault)

    # tasks

    async def _tick_breakers(self) -> None:
        while True:
            await asyncio.sleep(_BREAKER_TICK_S)
            self._breakers.expire(self._now_s())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("task %s ended: %s", task.get_name(), task.exception())


def _own_name(facts: NodeFacts) -> str | None:
    name = facts.node_id or ""
    fits = 0 < len(name) <= _MAX_NAME_CHARS and "/" not in name and name.isprintable()  # it stands in headers and labels
    return name if fits else None
