"""A decode server that grants leases as an engine does: real socket, real ledger, no engine."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic

import msgspec

from tests.router.stubs import Received, Reply, decode_server
from vllm_kairos.core.lease import LeaseGone, LeaseLedger, Share
from vllm_kairos.engine.publisher import StatePublisher
from vllm_kairos.wire.messages import Lease, NodeStateMessage
from vllm_kairos.wire.refusal import LEASE_GONE_STATUS, refusal_message

KEY = b"k" * 32
IDLE = NodeStateMessage(
    schema=1,
    node_id="d0",
    role="decode",
    dp_rank=0,
    boot_id="boot-one",
    sequence=0,
    sent_at_s=0.0,
    model="m",
    engine_id="",
    running_decodes=4,
    kv_tokens=4000,
    queued_prompt_tokens=[],
    queued_prefill_tokens=0,
    running_prefill_tokens=0,
    token_budget_tokens=2048,
    max_running_requests=64,
    max_model_len_tokens=8192,
    block_size_tokens=16,
    free_kv_blocks=3000,
    total_kv_blocks=4000,
    kv_bytes_per_token=131072,
    remote_kv_requests=0,
    remote_kv_tokens=0,
    deflected_tokens_left=[],
)


class LeasingEngine:
    """Publishes a state that stays the same with what `capacity` grants anew in each message.

    None for `capacity`: it speaks of no leases. It admits under its leases what they cover, and everything without one.
    """

    def __init__(self, capacity: Share | None, *, period_s: float = 0.02, name: str = "d0") -> None:
        self.capacity, self.admitted, self.refused = capacity, 0, list[LeaseGone]()
        self.charged: dict[str, Share] = {}
        self.ledger = LeaseLedger("boot-one", ttl_s=1.0)
        self.routers: frozenset[str] = frozenset()
        self.grants = True  # False: nothing is granted any more
        self.refuses: LeaseGone | None = None  # whatever was granted
        self.gate: asyncio.Event | None = None  # waited for before a deflected request is answered
        self._lock = threading.Lock()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.endpoint = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.publisher = StatePublisher(self.endpoint, key=KEY, period_s=period_s, lease=self._lease)
        state = msgspec.structs.replace(IDLE, node_id=name, speaks_leases=capacity is not None)
        self.publisher.publish(state)

    def revoke(self) -> None:
        """As an engine does when reality turns: nothing is granted any more."""
        with self._lock:
            self.grants = False
            self.ledger.revoke()
        self.publisher.repeat()

    def serve(self, received: Received) -> Reply:
        """The script of its stub server."""
        ours = (received.kv or {}).get("kairos", {}) if received.raw and not received.is_release else {}
        claim = ours.get("lease")
        if claim is None:
            return decode_server(received)
        need = Share(received.body["tokens"], 10, 5)
        with self._lock:
            gone = self.refuses or self.ledger.admit(monotonic(), claim["id"], claim["router"], need)
        if gone is None:
            self.admitted += 1
            self.charged[claim["router"]] = self.charged.get(claim["router"], Share(0, 0, 0)).plus(need)
            return decode_server(received) if self.gate is None else replace(decode_server(received), gate=self.gate)
        self.refused.append(gone)
        error = {"error": {"message": refusal_message(gone), "type": "InternalServerError", "code": LEASE_GONE_STATUS}}
        return Reply(status=LEASE_GONE_STATUS, json=error)

    def _lease(self, routers: frozenset[str]) -> Lease | None:
        with self._lock:
            self.routers = routers
            if self.capacity is None:
                return None
            if self.grants:
                self.ledger.grant(monotonic(), self.capacity, steps=4, transfer_tokens=0, routers=routers)
            lease = self.ledger.current(monotonic())
        if lease is None:
            return None
        shares = {name: tuple(share) for name, share in lease.shares.items()}
        total = lease.total
        return Lease(
            lease_id=lease.lease_id,
            expires_in_s=lease.ttl_s,
            prefill_tokens=total.prefill_tokens,
            kv_blocks=total.kv_blocks,
            epoch=lease.epoch,
            steps=lease.steps,
            output_tokens=total.output_tokens,
            shares=shares,  # type: ignore[arg-type]
        )


@contextmanager
def leasing_engine(capacity: Share | None, *, period_s: float = 0.02) -> Iterator[LeasingEngine]:
    """An engine for the length of the context."""
    engine = LeasingEngine(capacity, period_s=period_s)
    try:
        yield engine
    finally:
        engine.publisher.close()
