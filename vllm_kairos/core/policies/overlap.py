"""The decode node that a KV-aware router would choose, for the policies that reproduce such routers' rules."""

from collections.abc import Sequence

from vllm_kairos.core.decision import Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.locals import Local, StaticLocals
from vllm_kairos.core.policies.pools import Pools, blocked_without_bound, fresh_with_room, kv_need_tokens
from vllm_kairos.core.policies.routing import Routing
from vllm_kairos.core.shapes import RequestShape


def chosen_decode(request: RequestShape, pools: Pools, routing: Routing) -> NodeState | None:
    """Return the node with the least cost in KV blocks: those in use and those the prompt adds, less what is cached.

    Dynamo 1.x's decode cost with its default weights (overlap credit 1, active requests 0, temperature 0).
    Ties go to the smaller id. Nodes without fresh state or room are left out, which a deflection needs anyway.
    """
    nodes = fresh_with_room(pools.decodes, kv_need_tokens(request, routing.settings))
    return min(nodes, key=lambda node: (_cost_blocks(request, node), node.node_id), default=None)


def why_none_chosen(request: RequestShape, pools: Pools, routing: Routing) -> Reason:
    """Name what kept every decode node from being chosen."""
    return blocked_without_bound(pools.decodes, kv_need_tokens(request, routing.settings))


def chosen_prefill(request: RequestShape, prefills: Sequence[NodeState]) -> NodeState:
    """Return the node with the fewest prefill tokens once the prompt, less what is cached, has joined its queue."""
    return min(prefills, key=lambda node: (node.queued_prefill_tokens + request.uncached_tokens(node.node_id), node.node_id))


def on_node(request: RequestShape, node: NodeState, routing: Routing) -> Local:
    """Plan the prompt on `node` in the static policies' chunks: the rule is another product's, the execution ours."""
    return StaticLocals(routing.settings, routing.decode_model).on(request, node)


def _cost_blocks(request: RequestShape, node: NodeState) -> int:
    cached_tokens = min(request.cached_tokens.get(node.node_id, 0), request.prompt_tokens)
    in_use = node.total_kv_blocks - node.free_kv_blocks
    return in_use + node.kv_blocks_for(request.prompt_tokens) - cached_tokens // node.block_size_tokens
