"""`dynamo-isl[:TOKENS[:RATIO]]`: NVIDIA Dynamo's conditional disaggregation by input length."""

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
class DynamoIsl:
    """Deflect when the prompt's uncached part on the chosen decode node is short, and a small share of it.

    The rule `isl_bounding` of Dynamo 1.4 to 1.6 (`--router-conditional-disagg-config`): effective ISL <
    `eff_isl_threshold` and effective ISL / ISL < `eff_isl_ratio_threshold`, both strict, with its defaults
    2048 and 0.7 and its decode-busy guard off. A prompt of which nothing is cached has ratio 1: it is
    kept unless the ratio here is above 1, which Dynamo itself does not accept. The `max_local_prefill_length` and
    `max_prefill_queue_size` of Dynamo 0.x are gone from those releases: lengths alone decide.
    """

    routing: Routing
    name: str = "dynamo-isl"
    threshold_tokens: int = 2048
    ratio: float = 0.7

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by what of it is not cached."""
        return self.routing.decide(request, nodes, now_s, self._by_uncached_length)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_uncached_length(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        node = chosen_decode(request, pools, self.routing)
        if node is None:
            return Choice(why_none_chosen(request, pools, self.routing))
        effective = max(0, request.prompt_tokens - request.cached_tokens.get(node.node_id, 0))
        if effective >= self.threshold_tokens or effective / request.prompt_tokens >= self.ratio:
            return Choice(Reason.BELOW_RULE)
        return Choice(Reason.THRESHOLD, on_node(request, node, self.routing), deflect=True)
