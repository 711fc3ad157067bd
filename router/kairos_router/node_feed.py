"""The node-state feed: ZMQ frames in, view events out; what is wrong is dropped and counted."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import zmq
import zmq.asyncio

from kairos_router.metrics import RouterMetrics
from kairos_router.registry import ViewSink, Worker, WorkerRegistry
from vllm_kairos.core.events import NodeReported, TransferObserved
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease.terms import NodeLease, Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import StateError, WireError
from vllm_kairos.wire.codec import STATE_TOPIC, StateDecoder
from vllm_kairos.wire.messages import NodeStateMessage, StepSample
from vllm_kairos.wire.routers import router_topic

_LOG = logging.getLogger(__name__)
_REASONS = (
    ("signature", "unsigned"),
    ("replayed or reordered", "replayed"),
    ("was replaced", "old-boot"),
    ("schema must be", "schema"),
)
_FOREIGN = "foreign"  # it speaks of a node that this address is not known for
_MAX_PEERS = 4096


def drop_reason(error: WireError) -> str:
    """Return the `reason` label for what the decoder refused."""
    text = str(error)
    return next((reason for marker, reason in _REASONS if marker in text), "malformed")


def node_id_of(worker: Worker, message: NodeStateMessage) -> str | None:
    """Return the node that `message` describes, None where it is none of `worker`'s."""
    if message.node_id != worker.name or not 0 <= message.dp_rank < worker.dp_size:
        return None
    return worker.node_ids[message.dp_rank]


def node_state(message: NodeStateMessage, *, node_id: str, role: Role, received_at_s: float, router_id: str = "") -> NodeState:
    """Turn a message into the view's value for router `router_id`; its own clock plays no part. Raises StateError."""
    running = (message.running_prefill_tokens,) if message.running_prefill_tokens else ()
    return NodeState(
        node_id=node_id,
        role=role,
        running_decodes=message.running_decodes,
        kv_tokens=message.kv_tokens,
        queued_prompt_tokens=(*running, *message.queued_prompt_tokens),
        queued_prefill_tokens=message.running_prefill_tokens + message.queued_prefill_tokens,
        token_budget_tokens=message.token_budget_tokens,
        max_running_requests=message.max_running_requests,
        block_size_tokens=message.block_size_tokens,
        free_kv_blocks=message.free_kv_blocks,
        total_kv_blocks=message.total_kv_blocks,
        kv_bytes_per_token=message.kv_bytes_per_token,
        remote_kv_requests=message.remote_kv_requests,
        remote_kv_tokens=message.remote_kv_tokens,
        deflected_prefills=len(message.deflected_tokens_left),
        deflected_tokens_left=sum(message.deflected_tokens_left),
        lease=_share_of(router_id, message, received_at_s),
        speaks_leases=message.speaks_leases or message.lease is not None,
        observed_at_s=received_at_s,
    )


def _share_of(router_id: str, message: NodeStateMessage, received_at_s: float) -> NodeLease | None:
    lease = message.lease
    if lease is None or router_id not in lease.shares:
        return None
    return NodeLease(lease.lease_id, Share(*lease.shares[router_id]), received_at_s + lease.expires_in_s)


@dataclass(slots=True)
class _Heard:
    boot_id: str
    sequence: int
    engine_id: str
    model: str
    skipped_transfers: int
    skipped_transfer_bytes: int
    malformed_schedules: int


@dataclass(slots=True, kw_only=True)
class FeedIntake:
    """Takes frames of known workers, whatever carried them."""

    view: ViewSink
    registry: WorkerRegistry
    metrics: RouterMetrics
    key: bytes | None = None
    router_id: str = ""  # whose share of a lease counts
    models: Mapping[Role, StepLatencyModel] = field(default_factory=dict)  # for predicted against measured steps
    on_restart: Callable[[str], None] = lambda name: None  # a worker's boot id or model changed
    _decoders: dict[str, StateDecoder] = field(default_factory=dict)  # by worker: one cannot use up another's sequence
    _heard: dict[str, _Heard] = field(default_factory=dict)
    _node_of_engine: dict[str, str] = field(default_factory=dict)

    def take(self, worker_name: str, frames: Sequence[bytes], now_s: float) -> None:
        """Apply one message that came from `worker_name`'s address at `now_s`; never raises."""
        worker = self.registry.find(worker_name)
        if worker is None:
            self.metrics.feed_dropped(_FOREIGN)
            return
        try:
            message = self._decoder(worker_name).decode(frames)
            node_id = node_id_of(worker, message)
            if node_id is None:
                self.metrics.feed_dropped(_FOREIGN)
                return
            state = node_state(message, node_id=node_id, role=worker.role, received_at_s=now_s, router_id=self.router_id)
        except WireError as error:
            self.metrics.feed_dropped(drop_reason(error))
        except StateError:
            self.metrics.feed_dropped("malformed")
        else:
            self._accept(worker, message, state)

    def _decoder(self, worker_name: str) -> StateDecoder:
        if worker_name not in self._decoders:
            self._decoders[worker_name] = StateDecoder(self.key)
        return self._decoders[worker_name]

    def forget(self, worker: Worker) -> None:
        """Drop what is kept of a worker that was removed."""
        self._decoders.pop(worker.name, None)
        for node_id in worker.node_ids:
            heard = self._heard.pop(node_id, None)
            if heard is not None:
                self._node_of_engine.pop(heard.engine_id, None)

    def _accept(self, worker: Worker, message: NodeStateMessage, state: NodeState) -> None:
        self._note(worker, message, state.node_id)
        self.metrics.feed_message()
        self.view.apply(
            NodeReported(
                state=state,
                boot_id=message.boot_id,
                received_at_s=state.observed_at_s,
                state_age_s=message.state_age_s,
            )
        )
        self._note_transfers(message, state.node_id)
        model = self.models.get(worker.role)
        if model is not None:
            for sample in message.step_samples:
                self._note_step(model, sample, state.node_id)

    def _note(self, worker: Worker, message: NodeStateMessage, node_id: str) -> None:
        before = self._heard.get(node_id)
        self._heard[node_id] = _Heard(**{name: getattr(message, name) for name in _Heard.__slots__})
        if message.engine_id and len(self._node_of_engine) < _MAX_PEERS:
            self._node_of_engine[message.engine_id] = node_id
        if before is None:
            return
        if (before.boot_id, before.model) != (message.boot_id, message.model):
            if before.engine_id != message.engine_id:
                self._node_of_engine.pop(before.engine_id, None)
            self.on_restart(worker.name)
            return
        if message.sequence > before.sequence + 1:
            self.metrics.feed_gap(message.sequence - before.sequence - 1)
        self._note_totals(before, self._heard[node_id], node_id)

    def _note_totals(self, before: _Heard, after: _Heard, node_id: str) -> None:
        """Count what a node's totals grew by; what it did before the router knew it is not the router's."""
        transfers = after.skipped_transfers - before.skipped_transfers
        kv_bytes = after.skipped_transfer_bytes - before.skipped_transfer_bytes
        if transfers > 0:
            self.metrics.transfers_skipped(node_id, transfers, max(0, kv_bytes))
        malformed = after.malformed_schedules - before.malformed_schedules
        if malformed > 0:
            self.metrics.malformed_schedules(node_id, malformed)

    def _note_transfers(self, message: NodeStateMessage, node_id: str) -> None:
        for sample in message.transfer_samples:
            peer = self._node_of_engine.get(sample.peer)
            if peer is not None and sample.transferred_bytes > 0 and sample.transfer_s > 0:
                self.view.apply(TransferObserved(peer, node_id, sample.transferred_bytes, sample.transfer_s))

    def _note_step(self, model: StepLatencyModel, sample: StepSample, node_id: str) -> None:
        try:
            batch = BatchShape(
                running_decodes=sample.running_decodes,
                kv_tokens=sample.kv_tokens,
                prefill_tokens=sample.prefill_tokens,
                done_tokens=sample.done_tokens,
            )
        except StateError:
            self.metrics.feed_dropped("sample")
            return
        self.metrics.step_error(model.step_s(batch), sample.step_s, node_id)


class FeedSubscriber:
    """One SUB socket per worker, so that an address speaks for its own worker alone.

    With a `router_id` it also subscribes to that, which is how a node knows who spends its leases.
    """

    def __init__(self, intake: FeedIntake, now_s: Callable[[], float], router_id: str = "") -> None:
        self._topics = (STATE_TOPIC, router_topic(router_id)) if router_id else (STATE_TOPIC,)
        self._intake = intake
        self._now_s = now_s
        self._context = zmq.asyncio.Context()
        self._tasks: dict[str, tuple[tuple[str, ...], asyncio.Task[None]]] = {}

    async def follow(self, worker_name: str, endpoints: tuple[str, ...]) -> None:
        """Listen to a worker's endpoints, in place of those it had before."""
        known = self._tasks.get(worker_name)
        if known is not None and known[0] == endpoints:
            return
        await self.leave(worker_name)
        if endpoints:
            task = asyncio.create_task(self._read(worker_name, endpoints), name=f"node state of {worker_name}")
            self._tasks[worker_name] = (endpoints, task)

    async def leave(self, worker_name: str) -> None:
        """Stop listening to a worker."""
        known = self._tasks.pop(worker_name, None)
        if known is not None:
            known[1].cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await known[1]

    async def close(self) -> None:
        """Stop all tasks and close all sockets."""
        for name in tuple(self._tasks):
            await self.leave(name)
        self._context.destroy(linger=0)

    async def _read(self, worker_name: str, endpoints: tuple[str, ...]) -> None:
        socket = self._context.socket(zmq.SUB)
        try:
            for topic in self._topics:
                socket.setsockopt(zmq.SUBSCRIBE, topic)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
            for endpoint in endpoints:
                socket.connect(endpoint)
            while True:
                frames = await socket.recv_multipart()
                self._intake.take(worker_name, frames, self._now_s())
        except zmq.ZMQError as error:
            _LOG.error("server %s: its state cannot be followed at %s: %s", worker_name, ", ".join(endpoints), error)
        finally:
            socket.close(linger=0)
