"""`oracle`: the paper's upper bound (section 3.4), for callers that know the cluster's true state."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Decision, Explanation, Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.explain import explain
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools, blocked_without_bound, fresh_with_room, kv_need_tokens
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.shapes import RequestShape


@dataclass(frozen=True, slots=True)
class Oracle:
    """Deflect when a TBT-safe (decode node, chunks) gives the first token strictly sooner than the prefill path.

    Same predictions as `kairos`, without what that one owes to state that may be old: no margin alpha and
    no bound of one deflected prefill per node. A node that runs one may take another, planned
    behind what is left of it. `nodes` must be the true state, in-flight requests included.
    """

    routing: Routing  # with both models
    locals: SafeLocals
    name: str = "oracle"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to whatever is predicted to be sooner."""
        return self.routing.decide(request, nodes, now_s, self._sooner)

    def explain(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Explanation:
        """Decide, and say what the decision made of every node."""
        return explain(self.routing, self.decide(request, nodes, now_s), request, nodes, now_s)

    def _sooner(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        need = kv_need_tokens(request, self.routing.settings)
        roomy = fresh_with_room(pools.decodes, need)
        nodes = [node for node in roomy if node.decode_load[0] + node.prefill_ahead[0] < node.max_running_requests]
        if not nodes:
            return Choice(Reason.SLOTS_FULL if roomy else blocked_without_bound(pools.decodes, need))
        local = self.locals.best(request, nodes)
        if local is None:
            return Choice(Reason.TBT_UNSAFE)
        assert local.ttft_s is not None
        assert pair.ttft_s is not None
        if local.ttft_s >= pair.ttft_s:
            return Choice(Reason.PREFILL_SOONER, local)
        return Choice(Reason.SOONER, local, deflect=True)
