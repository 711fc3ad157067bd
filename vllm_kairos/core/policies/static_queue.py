"""`static-queue:N`: the paper's SQ baseline (section 3), deflect while every prefill queue is longer than N."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.locals import StaticLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class StaticQueue:
    """Deflect when all usable prefill nodes have more than `threshold_requests` prompts unfinished."""

    routing: Routing
    threshold_requests: int

    @property
    def name(self) -> str:
        return f"static-queue:{self.threshold_requests}"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by the prefill queues."""
        return self.routing.decide(request, nodes, now_s, self._by_queue)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_queue(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        shortest = min(len(node.queued_prompt_tokens) for node in pools.prefills)
        if shortest <= self.threshold_requests:
            return Choice(Reason.BELOW_RULE)
        local = StaticLocals(self.routing.settings, self.routing.decode_model).best(request, pools.deflectable)
        return Choice(pools.blocked) if local is None else Choice(Reason.THRESHOLD, local, deflect=True)
