"""Choice among servers of one role by the rules other routers have, around any deflection policy."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vllm_kairos.core.decision import Assign, Decision
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.shapes import RequestShape, Route


@dataclass(slots=True)
class NodeChoice:
    """round_robin, random or power_of_two over the nodes that take work."""

    rule: str
    draw: random.Random = field(default_factory=random.Random)
    _turn: int = 0

    def pick(self, nodes: Sequence[NodeState]) -> str | None:
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
    prefill: NodeChoice | None
    decode: NodeChoice | None

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        if self.prefill is not None and request.pinned_prefill_node is None:
            node_id = self.prefill.pick([node for node in nodes if node.accepting and node.role.prefills])
            request = replace(request, pinned_prefill_node=node_id)
        decision = self.policy.decide(request, nodes, now_s)
        if self.decode is None or not isinstance(decision, Assign) or decision.route is not Route.REMOTE:
            return decision
        node_id = self.decode.pick([node for node in nodes if node.accepting and node.role.decodes])
        return decision if node_id is None else replace(decision, decode_node=node_id)


def select(policy: Policy, *, prefill_rule: str, decode_rule: str) -> Policy:
    """Wrap `policy` where a rule other than `kairos` was asked for."""
    if prefill_rule == decode_rule == "kairos":
        return policy
    return SelectingPolicy(policy, _choice(prefill_rule), _choice(decode_rule))


def _choice(rule: str) -> NodeChoice | None:
    return None if rule == "kairos" else NodeChoice(rule)


def _load(node: NodeState) -> tuple[int, int, str]:
    return (node.queued_prefill_tokens, node.running_decodes + node.expected_decodes, node.node_id)
