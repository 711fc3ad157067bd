"""`kairos`: deflect when a TBT-safe schedule gives the first token soon enough (paper Algorithm 1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.estimates import queue_wait_s
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class Kairos:
    """Deflect to the decode node with least predicted TTFT when that is no later than the prefill path's
    plus a margin, and within the TTFT objective. Both bounds are inclusive.

    The margin is alpha - 1 times the wait in the prefill node's queue. The paper's Eq. 7 takes it of the
    whole TTFT; but a later first token is only worth taking for what it spares those queued behind, and
    an idle prefill node has nobody to spare. With a long queue both come to the same.
    """

    routing: Routing  # with both models
    locals: SafeLocals
    name: str = "kairos"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by the predictions for both paths."""
        return self.routing.decide(request, nodes, now_s, self.by_prediction)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def by_prediction(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        """Choose by the predictions for `pair` and for the soonest decode node."""
        local = self.locals.best(request, pools.deflectable)
        if local is None:
            return Choice(Reason.TBT_UNSAFE if pools.deflectable else pools.blocked)
        local_s, remote_s = local.ttft_s, pair.ttft_s
        assert local_s is not None
        assert remote_s is not None
        if local_s > request.ttft_slo_s:
            return Choice(Reason.OVER_TTFT_SLO, local)
        if local_s <= remote_s:
            return Choice(Reason.SOONER, local, deflect=True)
        if local_s <= remote_s + self._margin_s(pair):
            return Choice(Reason.WITHIN_MARGIN, local, deflect=True)
        return Choice(Reason.PREFILL_SOONER, local)

    def _margin_s(self, pair: Pair) -> float:
        model = self.routing.prefill_model
        assert model is not None
        return (self.routing.settings.alpha - 1) * queue_wait_s(model, pair.prefill)
