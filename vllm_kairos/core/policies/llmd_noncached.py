"""`llmd-noncached[:TOKENS]`: llm-d's decider by the prompt's non-cached suffix."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.overlap import chosen_decode, on_node, why_none_chosen
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class LlmdNoncached:
    """Disaggregate when at least `threshold_tokens` of the prompt are not cached on the chosen decode node.

    The rule of llm-d-router's `prefix-based-pd-decider` (`nonCachedTokens`): a non-cached suffix of exactly
    the threshold is kept on the prefill path, and 0, its default, turns disaggregation off: everything is
    deflected. Its examples use 8 and 16. Where llm-d's weighted scorers choose the decode node, the one
    with the least cost in KV blocks stands in.
    """

    routing: Routing
    name: str = "llmd-noncached"
    threshold_tokens: int = 0

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by what of it is not cached."""
        return self.routing.decide(request, nodes, now_s, self._by_suffix)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_suffix(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        node = chosen_decode(request, pools, self.routing)
        if node is None:
            return Choice(why_none_chosen(request, pools, self.routing))
        suffix = request.prompt_tokens - request.cached_tokens.get(node.node_id, 0)
        if self.threshold_tokens and suffix >= self.threshold_tokens:
            return Choice(Reason.BELOW_RULE)
        return Choice(Reason.THRESHOLD, on_node(request, node, self.routing), deflect=True)
