"""`never`: plain P/D disaggregation, the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class Never:
    """Every prompt runs on a prefill node, unless there is none and the operator lets it deflect."""

    routing: Routing
    name: str = "never"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to the best pair."""
        return self.routing.decide(request, nodes, now_s, _keep)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)


def _keep(request: RequestShape, pools: Pools, pair: Pair) -> Choice:
    return Choice(Reason.NEVER)
