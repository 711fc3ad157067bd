"""Score and pick for deflected requests: which decode node runs the prompt, in which chunks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop
from math import inf
from typing import Protocol

from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule, Planned, build_schedule
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.pools import has_room, kv_need_tokens
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

_LEAST_PREFILL_TOKENS = 16  # what a step carries where decodes alone fill a static chunk


@dataclass(frozen=True, slots=True)
class Local:
    """A decode node that would run the prompt, and how; `ttft_s` None: no model to predict it with."""

    node: NodeState
    schedule: ChunkSchedule
    ttft_s: float | None
    in_range: bool = True


class LocalPicker(Protocol):
    """Picks the decode node for a deflected request."""

    def best(self, request: RequestShape, nodes: Iterable[NodeState]) -> Local | None:
        """Return the best of `nodes` under this picker's rule, None if none satisfies it."""


@dataclass(frozen=True, slots=True)
class SafeLocals:
    """Least predicted TTFT among the nodes where no running decode would miss its TBT objective.

    Every node gets a cheap lower bound; exact schedules are built in the order of the bounds until
    none can beat the best. Equal TTFTs go to the smaller KV use, then to the smaller id.
    """

    model: StepLatencyModel
    settings: DecisionSettings

    def best(self, request: RequestShape, nodes: Iterable[NodeState]) -> Local | None:
        """Return the node with the soonest safe first token."""
        bounds = [(self._floor_s(request, node), node.used_kv_blocks, node.node_id, node) for node in nodes]
        heapify(bounds)
        plans: dict[tuple[int, int, int], Planned | None] = {}
        best: tuple[float, int, str] = (inf, 0, "")
        chosen: tuple[NodeState, Planned] | None = None
        while bounds and bounds[0][0] <= best[0] and bounds[0][0] < inf:
            _, used, name, node = heappop(bounds)
            state = load_of(request, node)
            plan = plans[state] if state in plans else plans.setdefault(state, self.plan(request, node))
            if plan is not None and (plan.ttft_s, used, name) < best:
                best, chosen = (plan.ttft_s, used, name), (node, plan)
        if chosen is None:
            return None
        node, plan = chosen
        return Local(node, plan.schedule, plan.ttft_s, plan.in_range)

    def plan(self, request: RequestShape, node: NodeState) -> Planned | None:
        """Build the safe schedule of `request` on `node`, None if there is none."""
        decodes, kv_tokens, done = load_of(request, node)
        return build_schedule(
            self.model,
            running_decodes=decodes,
            kv_tokens=kv_tokens,
            prompt_tokens=request.prompt_tokens,
            done_tokens=done,
            candidates=self.settings.chunk_candidates_tokens,
            limit_s=self.limit_s(request),
        )

    def limit_s(self, request: RequestShape) -> float:
        """The longest step allowed: beta times the TBT objective."""
        return self.settings.beta * request.tbt_slo_s

    def _floor_s(self, request: RequestShape, node: NodeState) -> float:
        decodes, kv_tokens, done = load_of(request, node)
        return self.model.schedule_floor_s(
            decodes,
            kv_tokens,
            request.prompt_tokens,
            done,
            self.settings.chunk_candidates_tokens,
            self.settings.beta * request.tbt_slo_s,
        )


@dataclass(frozen=True, slots=True)
class StaticLocals:
    """Least KV in use, one fixed chunk size, no look at TBT (the paper's static baselines)."""

    settings: DecisionSettings
    model: StepLatencyModel | None = None  # only to predict what the fixed chunks will take

    def best(self, request: RequestShape, nodes: Iterable[NodeState]) -> Local | None:
        """Return the least loaded node; ties go to the smaller id."""
        node = min(nodes, key=_static_load, default=None)
        return None if node is None else self.on(request, node)

    def on(self, request: RequestShape, node: NodeState) -> Local:
        """Plan fixed chunks on `node`."""
        decodes, kv_tokens, done = load_of(request, node)
        chi = max(self.settings.static_chunk_tokens, decodes + _LEAST_PREFILL_TOKENS)
        steps = -(-(request.prompt_tokens - done) // (chi - decodes))
        local = Local(node, ChunkSchedule((ChunkRun(chi, steps),)), None)
        if self.model is None:
            return local
        planned = build_schedule(
            self.model,
            running_decodes=decodes,
            kv_tokens=kv_tokens,
            prompt_tokens=request.prompt_tokens,
            done_tokens=done,
            candidates=(chi,),
            limit_s=inf,
        )
        assert planned is not None  # nothing bounds its steps
        return replace(local, ttft_s=planned.ttft_s, in_range=planned.in_range)


def anyhow(
    request: RequestShape, nodes: Sequence[NodeState], settings: DecisionSettings, model: StepLatencyModel | None
) -> Local:
    """Pick where a prompt that must run on a decode node does least harm: fresh, roomy and not busy first.

    A safe schedule if there is one, fixed small chunks otherwise. `nodes` must not be empty.
    """
    need = kv_need_tokens(request, settings)
    node = min(nodes, key=lambda node: (node.stale, not has_room(node, need), node.deflected_prefills, *_static_load(node)))
    plan = SafeLocals(model, settings).plan(request, node) if model else None
    if plan is None:
        return StaticLocals(settings, model).on(request, node)
    return Local(node, plan.schedule, plan.ttft_s, plan.in_range)


def load_of(request: RequestShape, node: NodeState) -> tuple[int, int, int]:
    """B, K and the prompt's cached tokens on `node`; decodes that only wait for their KV count as running."""
    cached = request.cached_tokens
    done = request.prompt_tokens - request.uncached_tokens(node.node_id) if cached else 0
    return node.running_decodes + node.remote_kv_requests, node.kv_tokens + node.remote_kv_tokens, done


def _static_load(node: NodeState) -> tuple[int, int, str]:
    return node.used_kv_blocks * node.block_size_tokens, node.running_decodes, node.node_id
