"""`always`: every prompt runs on its decode node, as without disaggregation."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.locals import StaticLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools, blocked_without_bound, fresh_with_room, kv_need_tokens
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class Always:
    """Deflect to the fresh decode node with least deflected work, then least KV in use.

    The bound of one deflected prefill per node does not apply: it would send the rest to prefill
    nodes. Without a fresh node that has the KV free, the request is kept. Prefill nodes play no part in
    a deflection, so it is the same where there are none.
    """

    routing: Routing
    name: str = "always"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to a decode node alone."""
        return self.routing.decide(request, nodes, now_s, self._beside_a_pair, without_pair=self._deflect)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _beside_a_pair(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        return self._deflect(request, pools)

    def _deflect(self, request: RequestShape, pools: Pools) -> Choice:
        need = kv_need_tokens(request, self.routing.settings)
        nodes = fresh_with_room(pools.decodes, need)
        least = min((node.deflected_prefills for node in nodes), default=0)
        picker = StaticLocals(self.routing.settings, self.routing.decode_model)
        local = picker.best(request, [node for node in nodes if node.deflected_prefills == least])
        if local is None:
            return Choice(blocked_without_bound(pools.decodes, need))
        return Choice(Reason.ALWAYS, local, deflect=True)
