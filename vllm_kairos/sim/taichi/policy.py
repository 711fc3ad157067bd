"""Length-aware prefill scheduling: which instance computes a prompt, and where its decode starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Assign, Decision, Reject, RejectReason
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.pools import can_ever_hold, fresh_with_room, kv_need_tokens
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.sim.taichi.ttft import Option, TtftEstimates

FEASIBLE = "ttft-feasible"
INFEASIBLE = "ttft-infeasible"


@dataclass(frozen=True, slots=True)
class Taichi:
    """TaiChi's choice of the prefill instance, as we read it.

    Of the instances where the predicted TTFT meets the objective, or of all if it is met nowhere, the one with
    the fewest queued prompt tokens; among equals a D-heavy one goes first, so that prompts that can afford small
    chunks, which are the short ones, leave the large chunks to those that cannot.
    A prompt of a D-heavy instance decodes where it is, one of a P-heavy instance on the D-heavy instance with
    the least KV in use: every decode starts on a D-heavy instance.
    """

    estimates: TtftEstimates
    settings: DecisionSettings
    name: str = "taichi"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to an instance, or refuse it where no D-heavy one can hold it."""
        accepting = [node for node in nodes if node.accepting]
        d_heavy = [node for node in accepting if node.role is not Role.PREFILL and can_ever_hold(node, request)]
        if not d_heavy:
            return self._refuse(request, accepting)
        p_heavy = [node for node in accepting if node.role is Role.PREFILL]
        options = self._options(request, _fresh(p_heavy), _fresh(d_heavy))
        feasible = [option for option in options if option.ttft_s <= request.ttft_slo_s]
        return _assign(min(feasible or options, key=_by_queue), FEASIBLE if feasible else INFEASIBLE)

    def _options(self, request: RequestShape, p_heavy: Sequence[NodeState], d_heavy: Sequence[NodeState]) -> list[Option]:
        """All instances with what they predict; a D-heavy one without room only where there is no other."""
        receiver = min(d_heavy, key=_kv_to_come)
        roomy = fresh_with_room(d_heavy, kv_need_tokens(request, self.settings))
        if not roomy and not p_heavy:
            roomy = [receiver]
        remote = self.estimates.on_p_heavy(request, p_heavy, receiver) if p_heavy else []
        return remote + self.estimates.on_d_heavy(request, roomy)

    def _refuse(self, request: RequestShape, accepting: Sequence[NodeState]) -> Reject:
        sizes = [node.total_kv_blocks * node.block_size_tokens for node in accepting if node.role is not Role.PREFILL]
        if not sizes:
            detail = f"policy {self.name!r} needs a node that decodes, got none of {len(accepting)}"
            return Reject(reason=RejectReason.NO_DECODE_NODE, detail=detail, retry_after_s=self.settings.retry_after_s)
        detail = f"prompt_tokens must be <= {max(sizes)}, the largest decode node's KV cache, got {request.prompt_tokens}"
        return Reject(reason=RejectReason.KV_TOO_LARGE, detail=detail)


def _fresh(nodes: Sequence[NodeState]) -> Sequence[NodeState]:
    return [node for node in nodes if not node.stale] or nodes


def _kv_to_come(node: NodeState) -> tuple[int, int, str]:
    return node.used_kv_tokens + node.expected_kv_tokens, node.coming_load[0], node.node_id


def _by_queue(option: Option) -> tuple[int, bool, float, str]:
    return option.queued_tokens, option.local is None, option.ttft_s, option.node.node_id


def _assign(option: Option, reason: str) -> Assign:
    if option.local is None:
        return Assign(
            route=Route.REMOTE,
            decode_node=option.decode.node_id,
            prefill_node=option.node.node_id,
            reason=reason,
            remote_ttft_s=option.ttft_s,
        )
    return Assign(
        route=Route.LOCAL,
        decode_node=option.node.node_id,
        prefill_node=None,
        reason=reason,
        schedule=option.local.schedule,
        local_ttft_s=option.ttft_s,
        in_fitted_range=option.local.in_range,
    )
