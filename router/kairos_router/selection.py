"""Choice among servers of one role by the rules other routers have, around any deflection policy."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kairos_router import affinity
from vllm_kairos.core.decision import Assign, Decision
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.pools import can_ever_hold, has_room
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.shapes import RequestShape, Route

BY_SESSION = "consistent_hash"


class Choice(Protocol):
    """Picks one of the nodes that take work."""

    def pick(self, nodes: Sequence[NodeState], request: RequestShape) -> str | None:
        """Return a node id; None leaves the choice to the deflection policy."""


@dataclass(frozen=True, slots=True)
class SessionChoice:
    """The node that the request's affinity key belongs to among those with room; none without a key."""

    def pick(self, nodes: Sequence[NodeState], request: RequestShape) -> str | None:
        if not request.affinity_key:
            return None
        able = [node for node in nodes if can_ever_hold(node, request)]
        roomy = [node for node in able if not _full(node, request)]
        return affinity.heaviest(request.affinity_key, (node.node_id for node in roomy or able))


@dataclass(slots=True)
class NodeChoice:
    """round_robin, random or power_of_two over the nodes that take work."""

    rule: str
    draw: random.Random = field(default_factory=random.Random)
    _turn: int = 0

    def pick(self, nodes: Sequence[NodeState], request: RequestShape) -> str | None:
        """Return a node id, None when there is no node."""
        able = sorted(nodes, key=lambda node: node.node_id)
        if not able:
            return None
        if self.rule == "round_robin":
            self._turn += 1
            return able[(self._turn - 1) % len(able)].node_id
        if self.rule == "random":
            return self.draw.choice(able).node_id
        pair = self.draw.sample(able, min(2, len(able)))
        return min(pair, key=_load).node_id


@dataclass(frozen=True, slots=True)
class SelectingPolicy:
    """Lets `policy` say whether to deflect, and picks the nodes of the two-leg path by rule; None: the policy's own."""

    policy: Policy
    prefill: Choice | None
    decode: Choice | None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        if self.prefill is not None and request.pinned_prefill_node is None:
            node_id = self.prefill.pick([node for node in nodes if node.accepting and node.role.prefills], request)
            request = replace(request, pinned_prefill_node=node_id)
        decision = self.policy.decide(request, nodes, now_s)
        if self.decode is None or not isinstance(decision, Assign) or decision.route is not Route.REMOTE:
            return decision
        node_id = self.decode.pick([node for node in nodes if node.accepting and node.role.decodes], request)
        return decision if node_id is None else replace(decision, decode_node=node_id)


def select(policy: Policy, *, prefill_rule: str, decode_rule: str) -> Policy:
    """Wrap `policy` where a rule other than `kairos` was asked for."""
    if prefill_rule == decode_rule == "kairos":
        return policy
    return SelectingPolicy(policy, _choice(prefill_rule), _choice(decode_rule))


def _choice(rule: str) -> Choice | None:
    if rule == "kairos":
        return None
    return SessionChoice() if rule == BY_SESSION else NodeChoice(rule)


def _full(node: NodeState, request: RequestShape) -> bool:
    """Say whether a node reports no room for the prompt now; one without a fresh report might have some."""
    if node.stale or not node.total_kv_blocks:
        return False
    return node.decode_load[0] >= node.max_running_requests or not has_room(node, request.prompt_tokens)


def _load(node: NodeState) -> tuple[int, int, str]:
    return (node.queued_prefill_tokens, node.running_decodes + node.expected_decodes, node.node_id)
