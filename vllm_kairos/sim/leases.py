"""What engines grant of their prefill, in simulated time, by the same objects as the engine plugin."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from vllm_kairos.core.decision import Claim
from vllm_kairos.core.lease import (
    NOTHING,
    LeaseGone,
    LeaseLedger,
    LeaseSettings,
    Load,
    NodeLease,
    OutputLengths,
    Share,
    capacity,
    turned,
)
from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job

_LENGTH_STEP_TOKENS = 64  # how finely what a decode has produced is told apart when its length is estimated


@dataclass(slots=True, eq=False)
class _Node:
    """One engine's ledger, and what it knew when it last granted."""

    engine: Engine
    ledger: LeaseLedger
    lengths: OutputLengths = field(default_factory=OutputLengths)
    read_s: float = -inf
    reckoned: Load | None = None  # None: nothing is in force
    granted: Share = NOTHING
    untold: set[str] = field(default_factory=set)  # routers that have not heard yet that it revoked
    prefill_tokens: int = 0  # of its step log, at the last step's end
    decodes: int = 0  # then
    step_ended_s: float = -inf


class Leases:
    """Grants at fresh reports, admits what arrives, revokes as steps end; only engines that decode have leases.

    A router hears of its own share alone, with each report that it gets.
    """

    def __init__(self, engines: Iterable[Engine], settings: LeaseSettings, routers: Sequence[str]) -> None:
        self._settings, self._routers = settings, tuple(routers)
        self._nodes = {
            engine.name: _Node(engine, LeaseLedger(engine.name, ttl_s=settings.ttl_s))
            for engine in engines
            if engine.spec.role.decodes
        }
        self.refused = 0
        self.revocations = 0

    def said(self, state: NodeState, age_s: float, now_s: float, router: str) -> NodeState:
        """Return a report that `router` gets with its share of the lease in force, granted anew where the state is fresh."""
        node = self._nodes.get(state.node_id)
        if node is None:
            return state
        if router in node.untold:
            node.untold.discard(router)
            node.read_s = now_s - age_s
        elif now_s - age_s > node.read_s or not node.engine.busy:
            node.read_s = now_s - age_s
            self._grant(node, now_s)
        lease = node.ledger.current(now_s)
        own = None
        if lease is not None and router in lease.shares:
            own = NodeLease(lease.lease_id, lease.shares[router], now_s + lease.ttl_s)
        return replace(state, lease=own, speaks_leases=True)

    def admit(self, engine: Engine, job: Job, claim: Claim, router: str, now_s: float) -> LeaseGone | None:
        """Charge what `job` needs to its router; None when it may enter."""
        node = self._nodes[engine.name]
        prompt, output = job.request.prompt_tokens, node.lengths.expected(job.request.output_tokens)
        need = Share(prompt, engine.pool.blocks_for(prompt + output), output)
        gone = node.ledger.admit(now_s, claim.lease_id, router, need)
        self.refused += gone is not None
        return gone

    def ended(self, engine: Engine, job: Job) -> None:
        """A decode leg is finished."""
        if engine.name in self._nodes:
            self._nodes[engine.name].lengths.ended(job.request.output_tokens)

    def step_ended(self, engine: Engine, now_s: float, router: str) -> bool:
        """Revoke where reality has turned; true: tell `router` so at once."""
        node = self._nodes.get(engine.name)
        if node is None:
            return False
        if now_s > node.step_ended_s:
            self._look(node, now_s)
        node.step_ended_s = now_s
        return router in node.untold

    def _look(self, node: _Node, now_s: float) -> None:
        missed = self._missed_deadlines(node, now_s)
        if node.reckoned is None or not (missed or self._may_have_turned(node, node.reckoned)):
            return
        if turned(node.reckoned, node.granted, _load(node), missed_deadlines=missed) is not None:
            node.ledger.revoke()
            node.reckoned, node.untold = None, set(self._routers)
            self.revocations += 1

    def _missed_deadlines(self, node: _Node, now_s: float) -> int:
        """Decodes that waited too long for the token of the step that ended, if it carried prefill."""
        carried = node.engine.log.prefill_tokens > node.prefill_tokens
        late = node.decodes if carried and now_s - node.step_ended_s > self._settings.tbt_slo_s else 0
        node.prefill_tokens, node.decodes = node.engine.log.prefill_tokens, len(node.engine.decodes)
        return late

    def _may_have_turned(self, node: _Node, reckoned: Load) -> bool:
        """Whether it is worth a closer look."""
        short = node.engine.free_blocks < reckoned.needed_kv_blocks
        return short or sum(job.tokens for job in _incoming(node.engine)) > reckoned.incoming_kv_tokens

    def _grant(self, node: _Node, now_s: float) -> None:
        load, settings, spec = _load(node), self._settings, node.engine.spec
        granted, steps = capacity(
            spec.model,
            load,
            tbt_s=settings.tbt_slo_s,
            beta=settings.beta,
            horizon_s=settings.horizon_s,
            token_budget_tokens=spec.token_budget_tokens,
        )
        tokens = load.incoming_kv_tokens
        lease = node.ledger.grant(now_s, granted, steps=steps, transfer_tokens=tokens, routers=self._routers)
        node.reckoned, node.granted = (None, NOTHING) if lease is None else (load, granted)


def _load(node: _Node) -> Load:
    engine = node.engine
    incoming, queued = _incoming(engine), _queued(engine)
    blocks_for = engine.pool.blocks_for
    coming = [(job, job.request.prompt_tokens + node.lengths.expected(job.output_tokens)) for job in (*incoming, *queued)]
    needed_blocks = sum(max(0, blocks_for(tokens) - job.held_blocks) for job, tokens in coming)
    growth_tokens, decodes = _growth(node), len(engine.decodes)
    return Load(
        running_decodes=decodes,
        kv_tokens=engine.decodes.kv_tokens,
        incoming_requests=len(incoming),
        incoming_kv_tokens=sum(job.tokens for job in incoming),
        queued_prompts=len(queued),
        queued_prefill_tokens=sum(job.tokens_left for job in queued),
        free_kv_blocks=engine.free_blocks,
        needed_kv_blocks=needed_blocks + blocks_for(growth_tokens),
        block_size_tokens=engine.spec.block_size_tokens,
        free_slots=engine.spec.max_running_requests - decodes - len(incoming) - len(queued),
        output_tokens=node.lengths.expected(engine.spec.kv_capacity_tokens),
    )


def _growth(node: _Node) -> int:
    """KV tokens that the running decodes are expected to add."""
    left: dict[int, int] = {}
    growth, capacity_tokens = 0, node.engine.spec.kv_capacity_tokens
    for job, produced in node.engine.decoding():
        step = produced // _LENGTH_STEP_TOKENS
        if step not in left:
            produced_then = step * _LENGTH_STEP_TOKENS
            left[step] = node.lengths.expected(capacity_tokens, produced_then) - produced_then
        rest = job.request.output_tokens - produced
        growth += rest if rest < left[step] else left[step]
    return growth


def _incoming(engine: Engine) -> list[Job]:
    """Those whose KV is computed elsewhere and who do not decode yet."""
    return [*engine.loading, *engine.arrived, *(job for job in (*engine.waiting, *engine.unseen) if job.pulls_kv)]


def _queued(engine: Engine) -> list[Job]:
    """Those with a prompt to compute here, running ones first."""
    return [*engine.prefills, *(job for job in (*engine.waiting, *engine.unseen) if not job.pulls_kv)]
