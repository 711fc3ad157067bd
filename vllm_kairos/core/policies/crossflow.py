"""`crossflow`: as `kairos`, with any number of deflections at a time that the decode nodes' leases cover (Crossflow)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vllm_kairos.core.decision import Assign, Claim, Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.kairos import Kairos
from vllm_kairos.core.policies.leased import Leased, need_of
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape, Route


@dataclass(frozen=True, slots=True)
class Crossflow:
    """Choose as `kairos` does, among the decode nodes whose lease covers the prompt; one that speaks of no leases takes
    one deflected prefill at a time.

    Where both paths miss the TTFT objective it takes the sooner one: under overload that is what is left to gain, and the
    lease, not the objective, bounds what a node takes on.

    A request that is bound to the decode path claims nothing: the prefill path, where a node sends what it does not
    admit, is closed to it.
    """

    kairos: Kairos
    name: str = "crossflow"

    @classmethod
    def of(cls, routing: Routing, locals_: SafeLocals) -> "Crossflow":
        """Build it with both models in `routing`."""
        return cls(Kairos(replace(routing, pooling=Leased()), locals_))

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` by the predictions for both paths, with a claim on the lease that it spends."""
        decision = self.kairos.routing.decide(request, nodes, now_s, self._by_prediction)
        if not isinstance(decision, Assign) or decision.prefill_node is not None or request.forced_route is Route.LOCAL:
            return decision
        node = next(node for node in nodes if node.node_id == decision.decode_node)
        if node.lease is None:
            return decision
        return replace(decision, claim=Claim(node.lease.lease_id, need_of(request, node, self.kairos.routing.settings)))

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.kairos.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _by_prediction(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        choice = self.kairos.by_prediction(request, pools, pair)
        if choice.reason is not Reason.OVER_TTFT_SLO or choice.local is None:
            return choice
        local_s, remote_s = choice.local.ttft_s, pair.ttft_s
        assert local_s is not None
        assert remote_s is not None
        return Choice(Reason.SOONER, choice.local, deflect=True) if request.ttft_slo_s < remote_s >= local_s else choice
