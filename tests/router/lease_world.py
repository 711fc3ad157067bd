"""A node and its routers for the model of leases: the real ledger, wire, feed, view and policy."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from kairos_router.metrics import RouterMetrics
from kairos_router.node_feed import FeedIntake
from kairos_router.registry import Worker, WorkerRegistry
from tests.strategies import A100
from vllm_kairos.core.decision import Assign, Claim, Reason
from vllm_kairos.core.events import Dispatched, Ended, FirstToken, LeaseRefused
from vllm_kairos.core.lease import Lease, LeaseGone, LeaseLedger, Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies import make_policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.core.view import ClusterView
from vllm_kairos.wire import messages, params
from vllm_kairos.wire.codec import encode_state

TTL_S = 0.5
BLOCK_TOKENS = 16
BLOCKS = 4000


@dataclass(slots=True)
class Granted:
    """What the model remembers of an epoch, in its own words."""

    boot_id: str
    lease: Lease
    at_s: float  # the node's clock
    revoked: bool = False
    admitted: dict[str, list[Share]] = field(default_factory=dict)  # since it was granted, under it or an earlier one


@dataclass(frozen=True, slots=True)
class Sent:
    """A deflected request on its way to the node."""

    router: str
    life: int  # of the router that sent it
    request_id: str
    prompt_tokens: int
    output_tokens: int
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What the node said to it; `claim`: that of a request which it did not admit."""

    router: str
    life: int
    request_id: str
    gone: LeaseGone | None


class Node:
    """The engine's side: one ledger, one sequence of messages, a clock that has nothing to do with anybody's."""

    def __init__(self, boot: int, clock_s: float) -> None:
        self.boot_id = f"b{boot:07d}-and-more"
        self.clock_s = clock_s
        self.ledger = LeaseLedger(self.boot_id, ttl_s=TTL_S)
        self.read_s = clock_s
        self.grants: list[Granted] = []
        self._sequence = itertools.count(1)

    def grant(self, capacity: Share, routers: list[str]) -> None:
        """Read the state and grant anew."""
        self.read_s = self.clock_s
        lease = self.ledger.grant(self.clock_s, capacity, steps=1, transfer_tokens=0, routers=routers)
        if lease is None:
            self.forget()
        else:
            self.grants.append(Granted(self.boot_id, lease, self.clock_s))

    def forget(self) -> None:
        """Note that nothing is in force any more."""
        for granted in self.grants:
            granted.revoked = True

    def message(self) -> list[bytes]:
        """The frames of the current state."""
        lease = self.ledger.current(self.clock_s)
        fields = dict.fromkeys(_COUNTS, 0) | {"free_kv_blocks": BLOCKS, "total_kv_blocks": BLOCKS, "block_size_tokens": 16}
        return encode_state(
            messages.NodeStateMessage(
                **fields,
                **_MESSAGE,
                node_id="d0",
                role="decode",
                boot_id=self.boot_id,
                sequence=next(self._sequence),
                state_age_s=self.clock_s - self.read_s,
                speaks_leases=True,
                lease=None if lease is None else _on_wire(lease),
            ),
            None,
        )

    def take(self, sent: Sent) -> LeaseGone | None:
        """Admit a request or not; what is admitted is charged in the model's own books, too."""
        claim = params.parse(sent.parameters).lease
        if claim is None:
            return None  # of a router that knows of no leases
        blocks = -(-(sent.prompt_tokens + sent.output_tokens) // BLOCK_TOKENS)
        need = Share(sent.prompt_tokens, blocks, sent.output_tokens)
        gone = self.ledger.admit(self.clock_s, claim.id, claim.router, need)
        if gone is None:
            self._charge(claim, need)
        return gone

    def _charge(self, claim: params.LeaseClaim, need: Share) -> None:
        (named,) = (granted for granted in self.grants if granted.lease.lease_id == claim.id)
        assert not named.revoked
        assert self.clock_s - named.at_s < TTL_S
        for granted in self.grants:
            if granted.lease.epoch < named.lease.epoch:
                continue
            admitted = granted.admitted.setdefault(claim.router, [])
            admitted.append(need)
            assert granted.lease.shares[claim.router].covers(Share(*map(sum, zip(*admitted, strict=True))))


class Router:
    """The router's side, as far as leases go; `speaks`: it spends them, else it is of an earlier version."""

    def __init__(self, name: str, *, speaks: bool, clock_s: float, life: int) -> None:
        self.name, self.speaks, self.clock_s, self.life = name, speaks, clock_s, life
        self.view = ClusterView(stale_after_s=1.0)
        self._registry = WorkerRegistry(self.view)
        self._registry.add(Worker(name="d0", role=Role.DECODE, url="http://d:1"))
        self._registry.add(Worker(name="p0", role=Role.PREFILL, url="http://p:1"))
        router_id = name if speaks else ""
        self._intake = FeedIntake(view=self.view, registry=self._registry, metrics=RouterMetrics(), router_id=router_id)
        settings = DecisionSettings()
        spec = "crossflow" if speaks else "kairos"
        self._policy = make_policy(spec, prefill_model=A100, decode_model=A100, settings=settings)
        self._sequence = itertools.count(1)
        self.waiting: dict[str, tuple[RequestShape, Claim | None]] = {}  # deflected, and not answered
        self.answered: dict[str, Route] = {}

    def hear(self, frames: list[bytes]) -> None:
        """A message of the decode node's came."""
        self._intake.take("d0", frames, self.clock_s)

    def decode_node(self) -> NodeState:
        """The decode node as it believes it to be."""
        return next(node for node in self.view.nodes(self.clock_s) if node.node_id == "d0")

    def send(self, shape: RequestShape) -> Sent | None:
        """Decide; a request for the prefill path is answered there, a deflected one goes out."""
        decision = self._decide(shape)
        if decision.route is Route.REMOTE:
            self.answered[shape.request_id] = Route.REMOTE
            return None
        claim = decision.claim
        need = None if claim is None else claim.need
        self.view.apply(Dispatched(shape.request_id, Route.LOCAL, None, "d0", shape.prompt_tokens, self.clock_s, need))
        self.waiting[shape.request_id] = shape, claim
        assert decision.schedule is not None
        lease = None if claim is None else params.LeaseClaim(id=claim.lease_id, router=self.name)
        encoded = params.encode(decision.schedule.batch_tokens(), lease)
        return Sent(self.name, self.life, shape.request_id, shape.prompt_tokens, shape.max_output_tokens, encoded)

    def hear_reply(self, reply: Reply) -> None:
        """The node's answer came; one that it has given up waiting for, or had before, is nothing to it."""
        if reply.life != self.life or reply.request_id not in self.waiting:
            return
        shape, claim = self.waiting.pop(reply.request_id)
        if reply.gone is None:
            self.view.apply(FirstToken(reply.request_id, self.clock_s))
            self.answered[reply.request_id] = Route.LOCAL
        else:
            assert claim is not None
            self.view.apply(LeaseRefused("d0", claim.lease_id))
            lease = self.decode_node().lease
            assert lease is None or lease.lease_id != claim.lease_id
            self._take_prefill_path(shape)
        self.view.apply(Ended(reply.request_id, self.clock_s))

    def give_up(self, request_id: str) -> None:
        """Its connection broke: the request takes the prefill path."""
        if request_id in self.waiting:
            shape, _ = self.waiting.pop(request_id)
            self.view.apply(Ended(request_id, self.clock_s))
            self._take_prefill_path(shape)

    def _take_prefill_path(self, shape: RequestShape) -> None:
        """There is always one."""
        bound = RequestShape(
            request_id=shape.request_id,
            prompt_tokens=shape.prompt_tokens,
            forced_route=Route.REMOTE,
            forced_reason=Reason.LEASE_GONE,
        )
        assert self._decide(bound).route is Route.REMOTE
        self.answered[shape.request_id] = Route.REMOTE

    def _decide(self, shape: RequestShape) -> Assign:
        self._intake.take("p0", self._busy_prefill_node(), self.clock_s)
        decision = self._policy.decide(shape, self.view.nodes(self.clock_s), self.clock_s)
        assert isinstance(decision, Assign)
        assert decision.claim is None or self.speaks
        return decision

    def _busy_prefill_node(self) -> list[bytes]:
        fields = dict.fromkeys(_COUNTS, 0) | {"queued_prefill_tokens": 90_000, "block_size_tokens": 16}
        state = messages.NodeStateMessage(
            **fields, **_MESSAGE, node_id="p0", role="prefill", boot_id="p", sequence=next(self._sequence)
        )
        return encode_state(state, None)


_COUNTS = (
    *("dp_rank", "running_decodes", "kv_tokens", "queued_prefill_tokens", "running_prefill_tokens", "free_kv_blocks"),
    *("total_kv_blocks", "kv_bytes_per_token", "remote_kv_requests", "remote_kv_tokens"),
)
_MESSAGE: dict[str, Any] = {
    **{"schema": 1, "sent_at_s": 0.0, "model": "m", "engine_id": "", "queued_prompt_tokens": [], "deflected_tokens_left": []},
    **{"token_budget_tokens": 2048, "max_running_requests": 256, "max_model_len_tokens": 100_000},
}


def _on_wire(lease: Lease) -> messages.Lease:
    total = lease.total
    return messages.Lease(
        lease_id=lease.lease_id,
        expires_in_s=lease.ttl_s,
        prefill_tokens=total.prefill_tokens,
        kv_blocks=total.kv_blocks,
        epoch=lease.epoch,
        steps=lease.steps,
        output_tokens=total.output_tokens,
        shares={name: tuple(share) for name, share in lease.shares.items()},
    )
