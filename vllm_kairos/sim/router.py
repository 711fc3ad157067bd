"""The router in simulated time: it decides on what it has been told, and sends requests on their legs."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from vllm_kairos.core.decision import Assign, Claim, Decision, Reason, Reject, RejectReason
from vllm_kairos.core.events import (
    Dispatched,
    Ended,
    FirstToken,
    LeaseRefused,
    NodeAdded,
    NodeReported,
    PrefillDone,
    TransferObserved,
)
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.core.view import ClusterView
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.cluster_spec import RouterSpec
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kernel import REPORT, Kernel
from vllm_kairos.sim.leases import Leases
from vllm_kairos.sim.migrations import Migrations
from vllm_kairos.sim.moves import DecodeMover
from vllm_kairos.sim.network import Network
from vllm_kairos.sim.record import Objectives, RequestRecord, breakdown
from vllm_kairos.sim.reporter import Reporter
from vllm_kairos.workload.request import TraceRequest

_BOOT_ID = "only"
_LONGEST_STANDSTILL_S = 60.0


@dataclass(slots=True)
class _Open:
    """A request under way."""

    request: TraceRequest
    arrival_s: float
    decision: Assign
    prefill: Job | None = None
    decode: Job | None = None
    left: list[Job] = field(default_factory=list)  # decode legs that went on elsewhere
    source: tuple[Engine, Job] | None = None  # who has the KV that the decode leg pulls
    ttft_s: float = float("inf")

    @property
    def first_decode(self) -> Job | None:
        return self.left[0] if self.left else self.decode


class SimRouter:
    """Runs a policy on a ClusterView that is fed as the real one is: by reports that are late and may be lost.

    With `truth` every decision sees the engines as they are, which no router can. A `mover` may have
    running decodes go on elsewhere.
    """

    def __init__(
        self,
        spec: RouterSpec,
        kernel: Kernel,
        policy: Policy,
        objectives: Objectives,
        ended: Callable[[RequestRecord], None],
        rng: random.Random,
        *,
        truth: bool = False,
        mover: DecodeMover | None = None,
        name: str = "r0",
    ) -> None:
        self.name = name
        self._leases: Leases | None = None
        self._spec, self._kernel, self._policy, self._objectives = spec, kernel, policy, objectives
        self._ended, self._rng, self._truth = ended, rng, truth
        # What was sent shows in the engines' true state once it has got there.
        self._view = ClusterView(stale_after_s=spec.stale_after_s, settle_s=spec.hop_s if truth else spec.settle_s)
        self._engines: Mapping[str, Engine] = {}
        self._network: Network | None = None
        self._open: dict[str, _Open] = {}
        self._reporters: dict[str, Reporter] = {}
        self._reporting = True
        self._still_since_s = 0.0
        self._migrations = (
            None if mover is None else Migrations(mover, objectives, partial(kernel.after, spec.hop_s), self._moved)
        )

    @property
    def open_requests(self) -> int:
        return len(self._open)

    @property
    def routers(self) -> "tuple[SimRouter, ...]":
        """Itself alone; as of a fleet."""
        return (self,)

    @property
    def tracked_requests(self) -> int:
        """Requests that its view still counts."""
        return self._view.tracked_requests

    def has(self, request_id: str) -> bool:
        """Whether it is one of the open requests."""
        return request_id in self._open

    def connect(self, engines: Mapping[str, Engine], network: Network, leases: Leases | None = None) -> None:
        """Register the engines, which have reported once before the load begins, and start their heartbeats out of phase."""
        self._engines, self._network, self._leases = engines, network, leases
        for at, (name, engine) in enumerate(engines.items()):
            self._view.apply(NodeAdded(name, engine.spec.role))
            self._hear(self._with_lease(engine.state(), 0.0), 0.0, [])
            reporter = self._reporters[name] = Reporter(engine, self._kernel, self._spec.heartbeat_period_s, self._report)
            if not self._truth:
                reporter.begin(self._spec.heartbeat_period_s * at / len(engines))
        if self._migrations is not None:
            self._kernel.after(self._spec.heartbeat_period_s, partial(self._move_decodes, self._migrations), REPORT)

    def stop_reports(self) -> None:
        """No request will come any more: let the kernel's queue run dry."""
        self._reporting = False
        for reporter in self._reporters.values():
            reporter.stop()

    def arrive(self, request: TraceRequest) -> None:
        """Take in a request now."""
        arrival_s = self._kernel.now_s
        self._kernel.after(self._spec.decision_latency_s, lambda: self._decide(request, arrival_s))

    # What happens on the engines.

    def kv_wanted(self, engine: Engine, job: Job) -> None:
        """Pull the request's KV from the engine that computed it."""
        one = self._open[job.request.request_id]
        assert one.source is not None
        assert self._network is not None
        source = one.source[0]
        tokens = max(0, job.tokens - 1 - job.hit_tokens)
        size_bytes = tokens * engine.spec.kv_bytes_per_token
        job.load_started_s = self._kernel.now_s
        self._network.start(source.name, engine.name, size_bytes, partial(self._pulled, one, engine, size_bytes))

    def prefilled(self, engine: Engine, job: Job) -> None:
        """The prefill leg answers; then the decode leg starts."""
        self._kernel.after(self._spec.hop_s, partial(self._start_decode_leg, job.request.request_id))

    def first_token(self, engine: Engine, job: Job) -> None:
        """The client sees its first token one hop later."""
        one = self._open[job.request.request_id]
        at_s = self._kernel.now_s + self._spec.hop_s
        one.ttft_s = at_s - one.arrival_s
        self._kernel.at(at_s, lambda: self._view.apply(FirstToken(job.request.request_id, at_s)))

    def finished(self, engine: Engine, job: Job) -> None:
        """The client sees the end one hop later."""
        if self._leases is not None:
            self._leases.ended(engine, job)
        self._kernel.after(self._spec.hop_s, partial(self._end, job.request.request_id))

    def step_ended(self, engine: Engine, *, deflection_ended: bool) -> None:
        """An engine may have something to report."""
        revoked = self._leases is not None and self._leases.step_ended(engine, self._kernel.now_s, self.name)
        if not self._truth:
            self._reporters[engine.name].step_ended(urgent=deflection_ended or revoked)

    # The node-state feed.

    def _report(self, state: NodeState, age_s: float, transfers: list[TransferObserved]) -> None:
        state = self._with_lease(state, age_s)
        if self._spec.heartbeat_loss and self._rng.random() < self._spec.heartbeat_loss:
            return
        self._kernel.after(self._spec.heartbeat_delay_s, partial(self._hear, state, age_s, transfers), REPORT)

    def _with_lease(self, state: NodeState, age_s: float) -> NodeState:
        return state if self._leases is None else self._leases.said(state, age_s, self._kernel.now_s, self.name)

    def _hear(self, state: NodeState, age_s: float, transfers: list[TransferObserved]) -> None:
        self._view.apply(NodeReported(state, _BOOT_ID, self._kernel.now_s, age_s))
        for transfer in transfers:
            self._view.apply(transfer)

    def _look(self) -> None:
        """Take in every engine as it is."""
        for name, engine in self._engines.items():
            transfers, self._reporters[name].transfers = self._reporters[name].transfers, []
            self._hear(engine.state(), 0.0, transfers)

    # The story of one request.

    def _decide(self, request: TraceRequest, arrival_s: float, *, lease_gone: bool = False) -> None:
        now_s = self._kernel.now_s
        if self._truth:
            self._look()
        shape = self._shape(request)
        if lease_gone:
            shape = replace(shape, forced_route=Route.REMOTE, forced_reason=Reason.LEASE_GONE)
        decision = self._policy.decide(shape, self._view.nodes(now_s), now_s)
        if isinstance(decision, Assign):
            decision = self._outgrown(request, decision) or decision
        if not isinstance(decision, Assign):
            self._ended(RequestRecord(request=request, arrival_s=arrival_s, decision=decision))
            return
        self._dispatch(request, arrival_s, decision)

    def _outgrown(self, request: TraceRequest, decision: Assign) -> Reject | None:
        """Refuse, as vLLM's API does, what an engine could never hold to its end: it would wait there for ever."""
        whole_tokens = request.prompt_tokens + request.output_tokens - 1
        legs = ((decision.prefill_node, request.prompt_tokens), (decision.decode_node, whole_tokens))
        for name, tokens in legs:
            most = self._engines[name].spec.kv_capacity_tokens if name is not None else tokens
            if tokens > most:
                detail = f"request {request.request_id!r}: KV tokens must be <= {most} on node {name!r}, got {tokens}"
                return Reject(reason=RejectReason.KV_TOO_LARGE, detail=detail)
        return None

    def _dispatch(self, request: TraceRequest, arrival_s: float, decision: Assign) -> None:
        name, now_s = request.request_id, self._kernel.now_s
        claim, nodes = decision.claim, (decision.prefill_node, decision.decode_node)
        need = None if claim is None else claim.need
        self._view.apply(Dispatched(name, decision.route, *nodes, request.prompt_tokens, now_s, need))
        one = self._open[name] = _Open(request, arrival_s, decision)
        if decision.prefill_node is None:
            one.decode = Job(request=request, schedule=_schedule(decision))
            self._send(one.decode, decision.decode_node, claim)
        else:
            one.prefill = Job(request=request, prefill_only=True)
            self._send(one.prefill, decision.prefill_node)

    def _shape(self, request: TraceRequest) -> RequestShape:
        cached: dict[str, int] = {}
        if request.block_hashes and (self._spec.prefix_aware or self._truth):
            probe = Job(request=request)
            cached = {name: engine.pool.cached_tokens(probe) for name, engine in self._engines.items()}
        return RequestShape(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            max_output_tokens=request.output_tokens,
            ttft_slo_s=request.ttft_slo_s or self._objectives.ttft_s,
            tbt_slo_s=request.tbt_slo_s or self._objectives.tbt_s,
            cached_tokens={name: tokens for name, tokens in cached.items() if tokens},
        )

    def _send(self, job: Job, name: str, claim: Claim | None = None) -> None:
        engine = self._engines[name]
        self._kernel.after(self._spec.hop_s + engine.spec.frontend_s, partial(self._arrived, engine, job, claim))

    def _arrived(self, engine: Engine, job: Job, claim: Claim | None) -> None:
        """A leg is there; a node that does not admit it under its claim says so before any work."""
        now_s = self._kernel.now_s
        if claim is not None and self._leases is not None and self._leases.admit(engine, job, claim, self.name, now_s):
            self._kernel.after(self._spec.hop_s, partial(self._lease_gone, job.request.request_id, claim))
        else:
            engine.submit(job)

    def _lease_gone(self, name: str, claim: Claim) -> None:
        """The request takes the prefill path instead."""
        one = self._open.pop(name)
        self._view.apply(LeaseRefused(one.decision.decode_node, claim.lease_id))
        self._view.apply(Ended(name, self._kernel.now_s))
        self._decide(one.request, one.arrival_s, lease_gone=True)

    def _start_decode_leg(self, name: str) -> None:
        one = self._open[name]
        self._view.apply(PrefillDone(name, self._kernel.now_s))
        assert one.prefill is not None
        one.source = self._engines[one.decision.prefill_node or ""], one.prefill
        one.decode = Job(request=one.request, pulls_kv=True)
        self._send(one.decode, one.decision.decode_node)

    def _move_decodes(self, migrations: Migrations) -> None:
        if self._reporting:
            now_s = self._kernel.now_s
            self._check_progress(now_s)
            migrations.tick(self._engines, self._view.nodes(now_s), now_s)
            period_s = self._spec.heartbeat_period_s
            delay_s = period_s if self._open else self._kernel.until_next_report_s(period_s)
            self._kernel.after(delay_s, partial(self._move_decodes, migrations), REPORT)

    def _check_progress(self, now_s: float) -> None:
        """Raise SimulationError when moves wait for each other for ever: what moves holds blocks until they are pulled."""
        assert self._network is not None
        if not self._open or self._network.active_flows or any(engine.busy for engine in self._engines.values()):
            self._still_since_s = now_s
        elif now_s - self._still_since_s > _LONGEST_STANDSTILL_S:
            waiting = sum(len(engine.waiting) for engine in self._engines.values())
            rule = "at least one of the requests under way must be able to go on"
            raise SimulationError(f"moves: {rule}, got {waiting} that wait for KV blocks which others hold until pulled")

    def _moved(self, engine: Engine, job: Job, target: str) -> None:
        """Once told that `job` has left `engine`, send the leg that goes on with it to `target`."""
        one = self._open[job.request.request_id]
        one.source = engine, job
        one.left.append(job)
        one.decode = job.moved()
        self._kernel.after(self._spec.hop_s, partial(self._send, one.decode, target))

    def _pulled(self, one: _Open, target: Engine, size_bytes: int) -> None:
        assert one.source is not None
        assert one.decode is not None
        (source, leg), one.source = one.source, None
        took_s = self._kernel.now_s - one.decode.load_started_s
        self._reporters[target.name].transfers.append(TransferObserved(source.name, target.name, size_bytes, took_s))
        source.release(leg)
        target.kv_arrived(one.decode)
        if self._migrations is not None:
            self._migrations.arrived(one.request.request_id)

    def _end(self, name: str) -> None:
        one = self._open.pop(name)
        self._view.apply(Ended(name, self._kernel.now_s))
        assert one.first_decode is not None
        legs = [leg for leg in (one.prefill, *one.left, one.decode) if leg is not None]
        record = RequestRecord(
            request=one.request,
            arrival_s=one.arrival_s,
            decision=one.decision,
            ttft_s=one.ttft_s,
            finished_s=self._kernel.now_s,
            breakdown=breakdown(one.ttft_s, one.prefill, one.first_decode),
            hit_tokens=legs[0].hit_tokens,
            preemptions=sum(leg.preemptions for leg in legs),
            migrations=len(one.left),
        )
        self._ended(record)


def _schedule(decision: Decision) -> ScheduleState | None:
    assert isinstance(decision, Assign)
    if decision.schedule is None:
        return None
    return ScheduleState(tuple(decision.schedule.batch_tokens()), planned=True)
