"""Filter: which nodes may take part in a decision, and how far the others got."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from vllm_kairos.core.decision import Reason, Verdict
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

_BLOCKED_BY = {
    Verdict.STALE: Reason.STATE_STALE,
    Verdict.DEFLECTION_BUSY: Reason.DEFLECTION_BUSY,
    Verdict.SLOTS_FULL: Reason.SLOTS_FULL,
    Verdict.KV_FULL: Reason.KV_FULL,
}
_STAGES = tuple(_BLOCKED_BY)  # in the order the checks are made


@dataclass(frozen=True, slots=True)
class Pools:
    """Nodes by what they may do for one request. A stale node serves only where no fresh one is left."""

    prefills: Sequence[NodeState]
    decodes: Sequence[NodeState]  # every accepting decode node that can hold the prompt at all
    receivers: Sequence[NodeState]  # of those, the ones to send a kept request's KV to
    deflectable: Sequence[NodeState]
    blocked: Reason  # what kept every decode node from being deflectable, when none is


class Pooling(Protocol):
    """Says which nodes may take part in a decision."""

    def split(self, request: RequestShape, nodes: Sequence[NodeState], settings: DecisionSettings) -> Pools:
        """Sort `nodes` into pools."""

    def verdict(self, node: NodeState, request: RequestShape, settings: DecisionSettings) -> Verdict:
        """Say whether `node` may take `request` as a deflected one, TBT aside."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A decode node takes so many deflected prefills at a time."""

    def split(self, request: RequestShape, nodes: Sequence[NodeState], settings: DecisionSettings) -> Pools:
        """Sort `nodes` into pools."""
        return split(request, nodes, settings)

    def verdict(self, node: NodeState, request: RequestShape, settings: DecisionSettings) -> Verdict:
        """Say how far `node` gets."""
        share, most = settings.deflection_slot_share, settings.deflections_per_node
        return deflection_verdict(node, kv_need_tokens(request, settings), slot_share=share, most=most)


COUNTED = Counted()


def split(request: RequestShape, nodes: Sequence[NodeState], settings: DecisionSettings) -> Pools:
    """Sort `nodes` into pools."""
    need, prompt = kv_need_tokens(request, settings), request.prompt_tokens
    accepting = [node for node in nodes if node.accepting]
    prefill_only, decode_only = Role.PREFILL, Role.DECODE  # looking a member up takes longer than the rest of a check
    decodes = [
        node
        for node in accepting
        if node.role is not prefill_only
        and (not node.total_kv_blocks or node.total_kv_blocks * node.block_size_tokens >= prompt)  # can_ever_hold
    ]
    # All rules are spelled out, since every node of a fleet is asked.
    idle = [
        node
        for node in decodes
        if not node.stale
        and not node.deflected_prefills
        and node.decode_load[0] < node.max_running_requests
        and node.free_kv_blocks * node.block_size_tokens >= need
    ]
    share, most = settings.deflection_slot_share, settings.deflections_per_node
    roomy = [node for node in decodes if node.deflected_prefills and not node.stale and has_room(node, need)]
    # Whose deflection_verdict is FEASIBLE.
    deflectable = [node for node in idle if node.decode_load[0] < share * node.max_running_requests]
    if most > 1:
        deflectable += [node for node in roomy if node.deflected_prefills < most and has_slot(node, share)]
    return Pools(
        prefills=_fresh([node for node in accepting if node.role is not decode_only]),
        decodes=decodes,
        receivers=idle + roomy or _fresh(decodes),
        deflectable=deflectable,
        blocked=Reason.KV_FULL if deflectable else _blocked(decodes, need, slot_share=share, most=most),
    )


def _blocked(nodes: Sequence[NodeState], need_tokens: int, *, slot_share: float = 1.0, most: float = 1) -> Reason:
    """Name the last check that any of `nodes` came to, when none passed them all."""
    verdicts = [deflection_verdict(node, need_tokens, slot_share=slot_share, most=most) for node in nodes]
    return _BLOCKED_BY[_STAGES[max(map(_STAGES.index, verdicts), default=0)]]


def deflection_verdict(node: NodeState, need_tokens: int, *, slot_share: float = 1.0, most: float = 1) -> Verdict:
    """Say whether `node` may take a deflected prefill that needs `need_tokens` KV tokens, TBT aside.

    `slot_share`: of the requests it may run, those it may run already. `most`: deflected prefills at a time.
    """
    if node.stale:
        return Verdict.STALE
    if node.deflected_prefills >= most:
        return Verdict.DEFLECTION_BUSY
    if not has_slot(node, slot_share):
        return Verdict.SLOTS_FULL
    return Verdict.FEASIBLE if has_room(node, need_tokens) else Verdict.KV_FULL


def has_slot(node: NodeState, share: float) -> bool:
    """Say whether it runs less than `share` of the requests it may, with what its deflected prefills will become."""
    return node.decode_load[0] + node.deflected_prefills < share * node.max_running_requests


def has_room(node: NodeState, need_tokens: int) -> bool:
    """Say whether the KV blocks for `need_tokens` tokens are free."""
    return node.free_kv_blocks * node.block_size_tokens >= need_tokens


def fresh_with_room(nodes: Sequence[NodeState], need_tokens: int) -> list[NodeState]:
    """Keep the nodes that may take a deflected prefill where one per node is not the limit."""
    return [node for node in nodes if not node.stale and has_room(node, need_tokens)]


def blocked_without_bound(nodes: Sequence[NodeState], need_tokens: int) -> Reason:
    """Name what kept every node out of `fresh_with_room`, when all are out."""
    return _blocked(nodes, need_tokens, most=inf)


def can_ever_hold(node: NodeState, request: RequestShape) -> bool:
    """Say whether an empty `node` could hold the prompt; one that never said how large it is might."""
    return not node.total_kv_blocks or node.total_kv_blocks * node.block_size_tokens >= request.prompt_tokens


def kv_need_tokens(request: RequestShape, settings: DecisionSettings) -> int:
    """KV tokens to find free before deflecting: the prompt and a reserve for its output."""
    return request.prompt_tokens + min(request.max_output_tokens, settings.output_reserve_tokens)


def _fresh(nodes: Sequence[NodeState]) -> Sequence[NodeState]:
    return [node for node in nodes if not node.stale] or nodes
