"""`aggregated`: no disaggregation at all, vLLM servers of both phases behind a least-loaded router.

`aggregated:BUDGET`: with that token budget of a step, and without a governor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_kairos.core.decision import Assign, Decision, Reject, RejectReason
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Send each request, without a schedule, to the node of both phases with the fewest requests.

    Its engine chunks the prompt as vLLM does, up to the token budget. Nodes of one phase are left idle.
    """

    retry_after_s: float = 1.0
    name: str = "aggregated"

    def decide(self, request: RequestShape, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """Assign `request` to one node for both phases."""
        open_nodes = [node for node in nodes if node.accepting and node.role is Role.BOTH]
        if not open_nodes:
            detail = f"policy {self.name!r} needs nodes of role {str(Role.BOTH)!r}, got none of {len(nodes)}"
            return Reject(reason=RejectReason.NO_DECODE_NODE, detail=detail, retry_after_s=self.retry_after_s)
        node = min(open_nodes, key=_load)
        return Assign(route=Route.LOCAL, decode_node=node.node_id, prefill_node=None, reason=self.name)


def is_aggregated(spec: str) -> bool:
    """Whether `spec` names this policy, with a token budget or without."""
    return spec.partition(":")[0] == "aggregated"


def budget_of(spec: str) -> int | None:
    """The token budget that `spec` sets, if any. Raises ConfigError for what is no such budget."""
    _, colon, budget = spec.partition(":")
    if not colon:
        return None
    if not (budget.isascii() and budget.isdigit() and 1 <= len(budget) <= 9 and int(budget)):
        raise ConfigError(f"policy 'aggregated' must have a token budget >= 1 behind its colon, got {spec!r}")
    return int(budget)


def _load(node: NodeState) -> tuple[int, int, str]:
    requests = node.decode_load[0] + max(len(node.queued_prompt_tokens), node.deflected_prefills)
    return requests, node.queued_prefill_tokens, node.node_id
