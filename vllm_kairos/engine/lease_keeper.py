"""Grants leases on an engine's local prefill, admits requests under them, and takes them back when reality turns."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_kairos.core import lease as terms_of
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease import (
    NOTHING,
    LeaseGone,
    LeaseLedger,
    LeaseSettings,
    Load,
    OutputLengths,
    Share,
    Turned,
    capacity,
    turned,
)
from vllm_kairos.engine import compat
from vllm_kairos.engine.compat_leases import ended_by_itself, waited_decodes
from vllm_kairos.engine.compat_refusal import claim_of
from vllm_kairos.engine.counts_writer import CountsWriter
from vllm_kairos.engine.deflection import is_deflected
from vllm_kairos.engine.lease_counts import NO_CAPACITY, LeaseCounts
from vllm_kairos.engine.lease_load import pulls_kv, read_load
from vllm_kairos.engine.lease_price import CorrectedModel
from vllm_kairos.engine.settings import EngineSettings
from vllm_kairos.engine.steps_in_flight import StepsInFlight
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile
from vllm_kairos.wire.messages import Lease, StepSample

_PLUGIN = "kairos"  # tells routers why, in the API server; vLLM loads it only where it is named

logger = compat.init_logger("vllm.kairos.leases")


class LeaseKeeper:
    """Called in the scheduler's thread, but for `current`.

    A fresh report grants anew. An engine that is idle makes none: there the sending thread grants what the last one
    found, until a request arrives. After a revocation nothing is granted for a heartbeat.
    """

    def __init__(
        self,
        scheduler: Any,
        ledger: LeaseLedger,
        model: StepLatencyModel,
        terms: LeaseSettings,
        *,
        heartbeat_s: float,
        correct: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._scheduler, self._ledger, self._terms = scheduler, ledger, terms
        self._heartbeat_s, self._clock = heartbeat_s, clock
        self._price = CorrectedModel(model, correct=correct)
        self._lock = threading.Lock()  # of the ledger, and of what both threads grant by
        self._routers: frozenset[str] = frozenset()
        self._found: tuple[Share, int, Load] | None = None  # at the last look at everything
        self._idle = False
        self._resume_s = 0.0
        self._reckoned: Load | None = None  # by what is in force; None: nothing is
        self._granted = NOTHING
        self._low_blocks = self._came_tokens = 0
        self._in_flight: StepsInFlight[float] = StepsInFlight()
        self._last_finish_s = 0.0
        self.lengths = OutputLengths()
        self.counts = LeaseCounts()
        self._tell: Callable[[], None] = lambda: None
        self._writer: CountsWriter | None = None

    @classmethod
    def create(cls, scheduler: Any, settings: EngineSettings, boot_id: str) -> "LeaseKeeper | None":
        """A keeper as the settings ask, or None; ConfigError or ProfileError when it cannot do what they say."""
        chosen = settings.leases
        if chosen is None:
            return None
        if not scheduler.scheduler_config.enable_chunked_prefill:
            raise ConfigError("additional_config.kairos.leases needs chunked prefill, which is off")
        model = load_profile(resolve_profile(chosen.profile)).step_model
        ledger = LeaseLedger(boot_id, ttl_s=chosen.terms.ttl_s)
        return cls(scheduler, ledger, model, chosen.terms, heartbeat_s=settings.heartbeat_period_s, correct=chosen.correct)

    def start(self, tell: Callable[[], None], counts_path: Path | None) -> None:
        """From now on have routers told by `tell` that `current` has changed, and the API server what is counted."""
        self._tell = tell
        if _PLUGIN not in os.environ.get("VLLM_PLUGINS", "").split(","):
            logger.warning(
                "VLLM_PLUGINS does not name %s: to a request whose lease is gone this server says no more than 500", _PLUGIN
            )
        if counts_path is not None:
            self._writer = CountsWriter(self.counts, counts_path)

    def close(self) -> None:
        """Stop telling the API server."""
        if self._writer is not None:
            self._writer.close()

    def current(self, routers: frozenset[str]) -> Lease | None:
        """What is granted to the `routers` that are connected; called in the sending thread."""
        with self._lock:
            now_s = self._clock()
            self._routers = routers
            if self._idle:
                self._grant(now_s)
            lease = self._ledger.current(now_s)
        return None if lease is None else _message(lease)

    def grant(self, samples: Iterable[StepSample] = ()) -> None:
        """Grant what there is room for, at a fresh look at everything; `samples` are steps measured since the last one."""
        self._price.learn(samples)
        load, terms = read_load(self._scheduler, self.lengths), self._terms
        amount, steps = capacity(
            self._price.beside(load.running_decodes),
            load,
            tbt_s=terms.tbt_slo_s,
            beta=terms.beta,
            horizon_s=terms.horizon_s,
            token_budget_tokens=self._scheduler.max_num_scheduled_tokens,
        )
        with self._lock:
            self._found, self._idle = (amount, steps, load), not self._scheduler.has_unfinished_requests()
            self._grant(self._clock())

    def admit(self, request: Any) -> LeaseGone | None:
        """Take note of a new request; why it is not admitted where it claims a lease that does not cover it."""
        claim = claim_of(request.kv_transfer_params) if is_deflected(request) else None
        with self._lock:
            self._idle = False
            gone = None if claim is None else self._charge(request, claim)
        if claim is None and self._reckoned is not None and pulls_kv(self._scheduler, request):
            self._came(request.num_tokens, self._reckoned)
        return gone

    def ended(self, request: Any) -> None:
        """`request` ends, with all its output or without."""
        if ended_by_itself(request):
            self.lengths.ended(request.num_output_tokens)

    def step_scheduled(self, output: Any) -> None:
        """A step leaves for the workers."""
        if output.num_scheduled_tokens:
            self._in_flight.add(output, self._clock())

    def step_finished(self, output: Any) -> None:
        """A step's output was taken in: look whether what is granted still holds."""
        scheduled_s = self._in_flight.take(output)
        if scheduled_s is None:
            return
        now_s = self._clock()
        took_s, self._last_finish_s = now_s - max(scheduled_s, self._last_finish_s), now_s
        if self._reckoned is None:
            return
        late = waited_decodes(self._scheduler, output) if took_s > self._terms.tbt_slo_s else 0
        if late or compat.free_kv_blocks(self._scheduler) < self._low_blocks:
            self._look(self._reckoned, late)

    def _charge(self, request: Any, claim: Any) -> LeaseGone | None:
        need = self._need(request)
        gone = self._ledger.admit(self._clock(), claim["id"], claim["router"], need)
        if gone is not None:
            self.counts.refused[gone] += 1
            return gone
        self.counts.admitted += 1
        self.counts.admitted_tokens += need.prefill_tokens
        return None

    def _need(self, request: Any) -> Share:
        output_tokens = self.lengths.expected(request.max_tokens)
        tokens = request.num_tokens + output_tokens
        return Share(request.num_tokens, -(-tokens // self._scheduler.block_size), output_tokens)

    def _grant(self, now_s: float) -> None:
        """Grant what was found; the lock is held."""
        if self._found is None or now_s < self._resume_s:
            return
        amount, steps, load = self._found
        routers, before, tokens = self._routers, self._ledger.current(now_s), load.incoming_kv_tokens
        if self._ledger.grant(now_s, amount, steps=steps, transfer_tokens=tokens, routers=routers) is None:
            self._reckoned = None
            self.counts.revoked[NO_CAPACITY] += before is not None and bool(routers)
            return
        self.counts.granted += 1
        self._reckoned, self._granted = load, amount
        self._low_blocks, self._came_tokens = load.needed_kv_blocks, 0

    def _came(self, tokens: int, reckoned: Load) -> None:
        """KV of so many tokens will be pulled that the lease did not reckon with."""
        self._came_tokens += tokens
        blocks = -(-self._came_tokens // reckoned.block_size_tokens)
        incoming_tokens, needed_blocks = reckoned.incoming_kv_tokens + self._came_tokens, reckoned.needed_kv_blocks + blocks
        load = replace(reckoned, incoming_kv_tokens=incoming_tokens, needed_kv_blocks=needed_blocks)
        self._judge(turned(reckoned, self._granted, load))

    def _look(self, reckoned: Load, late: int) -> None:
        load = read_load(self._scheduler, self.lengths)
        self._low_blocks = load.needed_kv_blocks
        self._judge(turned(reckoned, self._granted, load, missed_deadlines=late))

    def _judge(self, why: Turned | None) -> None:
        if why is None:
            return
        with self._lock:
            self._reckoned = None
            if not self._ledger.revoke():
                return
            self._resume_s = self._clock() + self._heartbeat_s
            self.counts.revoked[why] += 1
        self._tell()


def _message(lease: terms_of.Lease) -> Lease:
    total = lease.total
    return Lease(
        lease_id=lease.lease_id,
        expires_in_s=lease.ttl_s,
        prefill_tokens=total.prefill_tokens,
        kv_blocks=total.kv_blocks,
        epoch=lease.epoch,
        steps=lease.steps,
        output_tokens=total.output_tokens,
        transfer_tokens=lease.transfer_tokens,
        shares={router: (share.prefill_tokens, share.kv_blocks, share.output_tokens) for router, share in lease.shares.items()},
    )
