"""`dynamo-load[:FRACTION]`: NVIDIA Dynamo's conditional disaggregation by prefill load."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.overlap import chosen_decode, chosen_prefill, on_node, why_none_chosen
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class DynamoLoad:
    """Deflect to the chosen decode node when the chosen prefill node is busy.

    The rule `prefill_load` of Dynamo 1.4 to 1.6: the prefill worker its router would choose has active
    prefill tokens > `prefill_busy_threshold` * max_num_batched_tokens, strictly, without the new prompt;
    the decode-busy guard is off. Dynamo has no default for the threshold but takes
    `--router-queue-threshold` for it, which has none either since 1.4; here it is that flag's 4.0 of earlier releases.
    """

    routing: Routing
    name: str = "dynamo-load"
    busy_fraction: float = 4.0

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by the load of one prefill node."""
        return self.routing.decide(request, nodes, now_s, self._by_load)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_load(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        prefill = chosen_prefill(request, pools.prefills)
        if prefill.queued_prefill_tokens <= self.busy_fraction * prefill.token_budget_tokens:
            return Choice(Reason.BELOW_RULE)
        node = chosen_decode(request, pools, self.routing)
        if node is None:
            return Choice(why_none_chosen(request, pools, self.routing))
        return Choice(Reason.THRESHOLD, on_node(request, node, self.routing), deflect=True)
