"""Runs one workload through one cluster under one policy."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from vllm_kairos.core.lease import LeaseSettings
from vllm_kairos.core.node import Role
from vllm_kairos.core.policy import Policy
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.cluster_spec import ClusterSpec
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.fleet import Fleet
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.sim.leases import Leases
from vllm_kairos.sim.moves import DecodeMover
from vllm_kairos.sim.network import Network
from vllm_kairos.sim.record import DEFAULT_OBJECTIVES, Objectives, RequestRecord
from vllm_kairos.sim.router import SimRouter
from vllm_kairos.sim.step_log import Gaps
from vllm_kairos.workload.request import TraceRequest, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutcome:
    """What one engine did."""

    name: str
    role: Role
    busy_s: float
    steps: int
    prefill_tokens: int
    decode_tokens: int
    preemptions: int
    gaps: tuple[Gaps, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished simulation; requests in the order of arrival."""

    policy: str
    workload: str
    seed: int
    duration_s: float  # until the last request ended
    events: int
    requests: tuple[RequestRecord, ...]
    engines: tuple[EngineOutcome, ...]
    transfers: int
    transferred_bytes: int


class Simulation:
    """One run. With `leases` the decode nodes grant them; `progress`, if given, is told how many requests have ended."""

    def __init__(
        self,
        cluster: ClusterSpec,
        workload: Workload,
        policy: Policy,
        *,
        objectives: Objectives = DEFAULT_OBJECTIVES,
        seed: int = 0,
        truth: bool = False,
        mover: DecodeMover | None = None,
        leases: LeaseSettings | None = None,
        routers: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.kernel = Kernel()
        self.network = Network(cluster.topology, self.kernel)
        if routers < 1 or (routers > 1 and mover is not None):
            raise SimulationError(f"routers must be 1, or more where no decodes move, got {routers}")
        each = [
            SimRouter(
                cluster.router,
                self.kernel,
                policy,
                objectives,
                self._ended,
                random.Random(f"{seed}:router" + (f"{at}" if at else "")),
                truth=truth,
                mover=mover,
                name=f"r{at}",
            )
            for at in range(routers)
        ]
        self.router = each[0] if routers == 1 else Fleet(each)
        self.engines = {
            spec.name: Engine(spec, self.kernel, self.router, random.Random(f"{seed}:{spec.name}")) for spec in cluster.engines
        }
        self.leases = None if leases is None else Leases(self.engines.values(), leases, [router.name for router in each])
        self.records: dict[str, RequestRecord] = {}
        self._workload, self._policy, self._seed, self._progress = workload, policy, seed, progress
        self._followers: dict[str, list[TraceRequest]] = defaultdict(list)

    def run(self) -> Outcome:
        """Simulate until the last request has ended."""
        self.router.connect(self.engines, self.network, self.leases)
        open_loop = [request for request in self._workload.requests if not request.after]
        for request in self._workload.requests:
            if request.after:
                self._followers[request.after].append(request)
        self._feed(iter(open_loop))
        if not open_loop:
            self.router.stop_reports()
        self.kernel.run()
        return self._outcome()

    def _feed(self, requests: Iterator[TraceRequest]) -> None:
        """Schedule the next arrival only, so that the queue stays as short as the cluster is busy."""
        request = next(requests, None)
        if request is not None:
            self.kernel.at(max(request.arrival_s, self.kernel.now_s), partial(self._arrive, request, requests))

    def _arrive(self, request: TraceRequest, rest: Iterator[TraceRequest]) -> None:
        self.router.arrive(request)
        self._feed(rest)

    def _ended(self, record: RequestRecord) -> None:
        self.records[record.request.request_id] = record
        for follower in self._followers.pop(record.request.request_id, ()):
            at_s = max(follower.arrival_s, self.kernel.now_s + follower.think_s)
            self.kernel.at(at_s, partial(self.router.arrive, follower))
        if len(self.records) == len(self._workload.requests):
            self.router.stop_reports()
        if self._progress is not None:
            self._progress(len(self.records))

    def _outcome(self) -> Outcome:
        ordered = [
            self.records[request.request_id] for request in self._workload.requests if request.request_id in self.records
        ]
        return Outcome(
            policy=self._policy.name,
            workload=self._workload.name,
            seed=self._seed,
            duration_s=max((record.finished_s for record in ordered if record.ok), default=0.0),
            events=self.kernel.handled,
            requests=tuple(ordered),
            engines=tuple(_engine_outcome(engine) for engine in self.engines.values()),
            transfers=self.network.transfers,
            transferred_bytes=sum(self.network.moved_bytes.values()),
        )


def _engine_outcome(engine: Engine) -> EngineOutcome:
    log = engine.log
    return EngineOutcome(
        name=engine.name,
        role=engine.spec.role,
        busy_s=log.busy_s,
        steps=log.steps,
        prefill_tokens=log.prefill_tokens,
        decode_tokens=log.decode_tokens,
        preemptions=engine.preemptions,
        gaps=tuple(log),
    )
