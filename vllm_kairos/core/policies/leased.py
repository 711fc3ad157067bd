"""Filter: which decode nodes a request may be deflected to by what they grant, however many it shares them with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_kairos.core.decision import Reason, Verdict
from vllm_kairos.core.lease.terms import Share
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.pools import COUNTED, Counted, Pools, has_slot
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

_BLOCKED_BY = {
    Verdict.STALE: Reason.STATE_STALE,
    Verdict.DEFLECTION_BUSY: Reason.DEFLECTION_BUSY,
    Verdict.NO_LEASE: Reason.NO_LEASE,
    Verdict.SLOTS_FULL: Reason.SLOTS_FULL,
    Verdict.KV_FULL: Reason.KV_FULL,
}
_STAGES = tuple(_BLOCKED_BY)  # in the order the checks are made


@dataclass(frozen=True, slots=True)
class Leased:
    """A node that speaks of leases is open as far as the router's share covers the request; any other, as under `Counted`.

    Blocks are the share's too: what the router itself keeps in mind for prompts that queue on prefill nodes would close
    every node under overload, for KV that comes much later.
    """

    counted: Counted = COUNTED

    def split(self, request: RequestShape, nodes: Sequence[NodeState], settings: DecisionSettings) -> Pools:
        """Sort `nodes` into pools."""
        pools = self.counted.split(request, nodes, settings)
        deflectable = [node for node in pools.deflectable if not node.speaks_leases]
        needs: dict[tuple[int, int], Share] = {}  # by what of a node decides it, since every node of a fleet is asked
        for node in pools.decodes:
            if node.lease is None or node.stale or not has_slot(node, settings.deflection_slot_share):
                continue
            key = request.uncached_tokens(node.node_id) if request.cached_tokens else 0, node.block_size_tokens
            need = needs.get(key) or needs.setdefault(key, need_of(request, node, settings))
            if node.lease.share.covers(need):
                deflectable.append(node)
        if deflectable:
            return replace(pools, deflectable=deflectable, blocked=Reason.KV_FULL)
        verdicts = [self.verdict(node, request, settings) for node in pools.decodes]
        furthest = max((_STAGES.index(verdict) for verdict in verdicts), default=0)
        return replace(pools, deflectable=(), blocked=_BLOCKED_BY[_STAGES[furthest]])

    def verdict(self, node: NodeState, request: RequestShape, settings: DecisionSettings) -> Verdict:
        """Say whether `node` may take `request` as a deflected one, TBT aside."""
        decide = _verdict if node.speaks_leases else self.counted.verdict
        return decide(node, request, settings)


def need_of(request: RequestShape, node: NodeState, settings: DecisionSettings) -> Share:
    """What `request` would spend of the lease of `node`."""
    output_tokens = min(request.max_output_tokens, settings.output_reserve_tokens)
    blocks = node.kv_blocks_for(request.prompt_tokens + output_tokens)
    return Share(request.uncached_tokens(node.node_id), blocks, output_tokens)


def _verdict(node: NodeState, request: RequestShape, settings: DecisionSettings) -> Verdict:
    if node.stale:
        return Verdict.STALE
    need = need_of(request, node, settings)
    if node.lease is None or not node.lease.share.covers(need):
        return Verdict.NO_LEASE
    if not has_slot(node, settings.deflection_slot_share):
        return Verdict.SLOTS_FULL
    return Verdict.FEASIBLE
