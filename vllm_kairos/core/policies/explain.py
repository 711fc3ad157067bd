"""A decision spelled out node by node, for people; never on the request path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from vllm_kairos.core.ahead import ahead_of_prompt
from vllm_kairos.core.decision import Assign, Decision, Explanation, NodeVerdict, Verdict
from vllm_kairos.core.estimates import queue_wait_s
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pools import can_ever_hold
from vllm_kairos.core.policies.routing import Routing
from vllm_kairos.core.shapes import RequestShape


def explain(
    routing: Routing, decision: Decision, request: RequestShape, nodes: Sequence[NodeState], now_s: float
) -> Explanation:
    """Say what `decision` made of every node: prefill nodes, then decode nodes, each by id.

    A decode node's verdict is about deflecting to it; a node of both roles has two lines.
    """
    lines = _Lines(routing, decision, request, now_s)
    ordered = sorted(nodes, key=lambda node: node.node_id)
    receivers = routing.pooling.split(request, nodes, routing.settings).receivers
    prefills = [lines.prefill(node, receivers) for node in ordered if node.role.prefills]
    decodes = [lines.decode(node) for node in ordered if node.role.decodes]
    return Explanation(decision=decision, nodes=(*prefills, *decodes))


@dataclass(frozen=True, slots=True)
class _Lines:
    routing: Routing
    decision: Decision
    request: RequestShape
    now_s: float

    def prefill(self, node: NodeState, receivers: Sequence[NodeState]) -> NodeVerdict:
        """A prefill node's line; its TTFT is the one with its best receiver."""
        verdict = Verdict.FEASIBLE if node.accepting else Verdict.NOT_ACCEPTING
        if node.accepting and node.stale:
            verdict = Verdict.STALE
        if isinstance(self.decision, Assign) and self.decision.prefill_node == node.node_id:
            verdict = Verdict.CHOSEN
        model = self.routing.prefill_model
        pair = self.routing.pairs.pick(self.request, [node], receivers)
        return NodeVerdict(
            node_id=node.node_id,
            role="prefill",
            verdict=verdict,
            ttft_s=None if pair is None else pair.ttft_s,
            queue_s=None if model is None else queue_wait_s(model, node),
            state_age_s=_age_s(node, self.now_s),
        )

    def decode(self, node: NodeState) -> NodeVerdict:
        """A decode node's line; its TTFT is that of a deflection to it."""
        line = NodeVerdict(
            node_id=node.node_id,
            role="decode",
            verdict=self._verdict(node),
            lease=None if node.lease is None else node.lease.share,
            state_age_s=_age_s(node, self.now_s),
        )
        model = self.routing.decode_model
        if model is not None:
            line = replace(line, step_s=model.latency_s(*node.decode_load, 0, 0), queue_s=self._wait_s(model, node))
            plan = SafeLocals(model, self.routing.settings).plan(self.request, node)
            if plan is not None:
                line = replace(line, schedule=plan.schedule, ttft_s=plan.ttft_s, worst_step_s=plan.worst_step_s)
            elif line.verdict is Verdict.FEASIBLE:
                line = replace(line, verdict=Verdict.TBT_UNSAFE)
        decision = self.decision
        if isinstance(decision, Assign) and decision.prefill_node is None and decision.decode_node == node.node_id:
            as_planned = decision.schedule == line.schedule  # else a static policy's own chunks
            return replace(
                line,
                verdict=Verdict.CHOSEN,
                schedule=decision.schedule,
                ttft_s=decision.local_ttft_s,
                worst_step_s=line.worst_step_s if as_planned else None,
            )
        return line

    def _wait_s(self, model: StepLatencyModel, node: NodeState) -> float | None:
        if not node.prefill_ahead[1]:
            return None
        settings = self.routing.settings
        return ahead_of_prompt(model, node, settings, settings.beta * self.request.tbt_slo_s).wait_s

    def _verdict(self, node: NodeState) -> Verdict:
        if not node.accepting:
            return Verdict.NOT_ACCEPTING
        if not can_ever_hold(node, self.request):
            return Verdict.KV_FULL
        return self.routing.pooling.verdict(node, self.request, self.routing.settings)


def _age_s(node: NodeState, now_s: float) -> float | None:
    return max(0.0, now_s - node.observed_at_s) if isfinite(node.observed_at_s) else None
