"""Score and pick for deflected requests: which decode node runs the prompt, in which chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop
from math import inf
from typing import Protocol

from vllm_kairos.core.ahead import ahead_floor_s, ahead_of_prompt
from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule, Planned, build_schedule
from vllm_kairos.core.latency import ScheduleBound, StepLatencyModel
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.pools import has_room, kv_need_tokens
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

_FEW_NODES = 2  # up to here, bounds cost more than the schedules they save
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

    def best(self, request: RequestShape, nodes: Sequence[NodeState]) -> Local | None:
        """Return the best of `nodes` under this picker's rule, None if none satisfies it."""


@dataclass(frozen=True, slots=True)
class SafeLocals:
    """Least predicted TTFT among the nodes where no running decode would miss its TBT objective.

    Every node gets a cheap lower bound; exact schedules are built in the order of the bounds until
    none can beat the best. Equal TTFTs go to the smaller KV use, then to the smaller id.
    """

    model: StepLatencyModel
    settings: DecisionSettings

    def best(self, request: RequestShape, nodes: Sequence[NodeState]) -> Local | None:
        """Return the node with the soonest safe first token."""
        bounds = None if len(nodes) <= _FEW_NODES else _Bounds(self.model, request, self.settings)
        floors_s: Sequence[float] = bounds.loose_s(nodes) if bounds else [0.0] * len(nodes)
        queue = [(floor_s, at) for at, floor_s in enumerate(floors_s) if floor_s < inf]
        heapify(queue)
        plans: dict[tuple[object, ...], Planned | None] = {}  # nodes in equal states share a plan
        best: tuple[float, int, str] = (inf, 0, "")
        chosen: tuple[NodeState, Planned] | None = None
        while queue and queue[0][0] <= best[0]:
            node = nodes[heappop(queue)[1]]
            state = (node.decode_load, _done_tokens(request, node), node.prefill_ahead, node.role, node.token_budget_tokens)
            if state not in plans:
                # A bound above the best is as good as no plan: the best only gets better.
                hopeless = bounds is not None and bounds.tight_s(node) > best[0]
                plans[state] = None if hopeless else self.plan(request, node)
            plan = plans[state]
            if plan is not None and (plan.ttft_s, node.used_kv_tokens, node.node_id) < best:
                best, chosen = (plan.ttft_s, node.used_kv_tokens, node.node_id), (node, plan)
        if chosen is None:
            return None
        node, plan = chosen
        return Local(node, plan.schedule, plan.ttft_s, plan.in_range)

    def plan(self, request: RequestShape, node: NodeState) -> Planned | None:
        """Build the safe schedule of `request` on `node`, None if there is none.

        Behind queued prefill the chunks are those that are safe once it runs as decodes, while the TTFT
        is that of the schedule without a queue, each step slower by the added load, after the wait: so
        that it never falls as the queue grows, wherever the chunks then happen to end.
        """
        at_once = self._build(request, node, node.decode_load)
        if at_once is None or not node.prefill_ahead[1]:
            return at_once
        decodes, kv_tokens = node.decode_load
        if not decodes:  # something will decode, and chunks be bounded, by the time the prompt runs
            bounded = self._build(request, node, (1, kv_tokens))
            if bounded is None:
                return None
            at_once = max(at_once, bounded, key=_ttft_s)
        ahead = ahead_of_prompt(self.model, node, self.settings, self.settings.beta * request.tbt_slo_s)
        behind = self._build(request, node, ahead.load)
        if behind is None:
            return None
        slower_s = self.model.latency_s(*ahead.load, 0, 0) - self.model.latency_s(max(decodes, 1), kv_tokens, 0, 0)
        ttft_s = ahead.wait_s + (at_once.ttft_s + at_once.schedule.steps * slower_s)
        return replace(behind, ttft_s=ttft_s, in_range=behind.in_range and at_once.in_range)

    def _build(self, request: RequestShape, node: NodeState, load: tuple[int, int]) -> Planned | None:
        return build_schedule(
            self.model,
            running_decodes=load[0],
            kv_tokens=load[1],
            prompt_tokens=request.prompt_tokens,
            done_tokens=_done_tokens(request, node),
            candidates=self.settings.chunk_candidates_tokens,
            limit_s=self.settings.beta * request.tbt_slo_s,
        )


class _Bounds:
    """Bounds for one request; they depend on how much of the prompt a node has cached."""

    def __init__(self, model: StepLatencyModel, request: RequestShape, settings: DecisionSettings) -> None:
        self._model, self._request, self._settings = model, request, settings
        self._by_done_tokens: dict[int, ScheduleBound] = {}

    def loose_s(self, nodes: Sequence[NodeState]) -> Sequence[float]:
        """Bound every node, all at once where none has anything cached."""
        if self._request.cached_tokens:
            return [self.tight_s(node) for node in nodes]
        floors_s = self._bound(0).loose_s([node.decode_load for node in nodes])
        if not any([node.prefill_ahead[1] for node in nodes]):  # a list: faster than a generator
            return floors_s
        return [
            floor_s + (ahead_floor_s(self._model, node, self._settings) if node.prefill_ahead[1] else 0.0)
            for floor_s, node in zip(floors_s, nodes, strict=True)
        ]

    def tight_s(self, node: NodeState) -> float:
        """Bound one node."""
        floor_s = self._bound(_done_tokens(self._request, node)).tight_s(node.decode_load)
        if node.prefill_ahead[1]:
            floor_s += ahead_floor_s(self._model, node, self._settings)
        return floor_s

    def _bound(self, done_tokens: int) -> ScheduleBound:
        if done_tokens not in self._by_done_tokens:
            self._by_done_tokens[done_tokens] = self._model.schedule_bound(
                prompt_tokens=self._request.prompt_tokens,
                done_tokens=done_tokens,
                candidates=self._settings.chunk_candidates_tokens,
                limit_s=self._settings.beta * self._request.tbt_slo_s,
            )
        return self._by_done_tokens[done_tokens]


@dataclass(frozen=True, slots=True)
class StaticLocals:
    """Least KV in use, one fixed chunk size, no look at TBT (the paper's static baselines)."""

    settings: DecisionSettings
    model: StepLatencyModel | None = None  # only to predict what the fixed chunks will take

    def best(self, request: RequestShape, nodes: Sequence[NodeState]) -> Local | None:
        """Return the least loaded node; ties go to the smaller id."""
        node = min(nodes, key=_static_load, default=None)
        return None if node is None else self.on(request, node)

    def on(self, request: RequestShape, node: NodeState) -> Local:
        """Plan fixed chunks on `node`."""
        (decodes, kv_tokens), done = node.decode_load, _done_tokens(request, node)
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
        ttft_s = planned.ttft_s
        if node.prefill_ahead[1]:
            ttft_s += ahead_of_prompt(self.model, node, self.settings, inf).wait_s
        return replace(local, ttft_s=ttft_s, in_range=planned.in_range)


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


def _ttft_s(plan: Planned) -> float:
    return plan.ttft_s


def _done_tokens(request: RequestShape, node: NodeState) -> int:
    """Prompt tokens that `node` has cached."""
    return request.prompt_tokens - request.uncached_tokens(node.node_id) if request.cached_tokens else 0


def _static_load(node: NodeState) -> tuple[int, int, str]:
    return node.used_kv_tokens, node.running_decodes, node.node_id
