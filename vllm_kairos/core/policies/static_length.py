"""`static-length:L`: the paper's SL baseline (section 3), deflect what is shorter than L tokens."""

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
class StaticLength:
    """Deflect when `prompt_tokens < threshold_tokens`; a prompt of exactly the threshold is kept.

    So a threshold of 0 or 1 deflects nothing, whatever the block size.
    """

    routing: Routing
    threshold_tokens: int

    @property
    def name(self) -> str:
        return f"static-length:{self.threshold_tokens}"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by its length."""
        return self.routing.decide(request, nodes, now_s, self._by_length)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_length(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        if request.prompt_tokens >= self.threshold_tokens:
            return Choice(Reason.BELOW_RULE)
        local = StaticLocals(self.routing.settings, self.routing.decode_model).best(request, pools.deflectable)
        return Choice(pools.blocked) if local is None else Choice(Reason.THRESHOLD, local, deflect=True)
