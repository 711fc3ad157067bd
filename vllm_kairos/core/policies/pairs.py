"""Score and pick for kept requests: which prefill node computes, which decode node receives."""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop
from math import inf
from typing import Protocol

from vllm_kairos.core.estimates import (
    first_decode_steps_s,
    prefill_completions_s,
    transfer_bytes,
    transfer_s,
    transfers_bytes,
)
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import BatchShape, RequestShape


@dataclass(frozen=True, slots=True)
class Pair:
    """A prefill and a decode node for one kept request, with the TTFT predicted if there is a model."""

    prefill: NodeState
    decode: NodeState
    ttft_s: float | None = None
    in_range: bool = True


class PairPicker(Protocol):
    """Picks the pair for a kept request."""

    def pick(self, request: RequestShape, prefills: Sequence[NodeState], decodes: Sequence[NodeState]) -> Pair | None:
        """Return the best pair of two different nodes, None if there is none."""


@dataclass(frozen=True, slots=True)
class LeastLoadedPairs:
    """Without a latency model: fewest queued prompt tokens, then fewest KV tokens in use or promised."""

    def pick(self, request: RequestShape, prefills: Sequence[NodeState], decodes: Sequence[NodeState]) -> Pair | None:
        """Return the least loaded pair; ties go to the smaller node id."""
        for prefill in sorted(prefills, key=lambda node: (node.queued_prefill_tokens, node.node_id)):
            others = [node for node in decodes if node.node_id != prefill.node_id]
            if others:
                return Pair(prefill, min(others, key=_decode_load))
        return None


@dataclass(frozen=True, slots=True)
class SoonestPairs:
    """Least predicted TTFT: queue and own prefill, KV transfer, first decode step.

    The prefill part depends on one node, the decode step on the other and only the transfer on both;
    so each decode node is bounded by its step and its fastest link, and pairs are tried in that order
    until no bound beats the best. Equal TTFTs go to the smaller bound, then load, then id.
    """

    prefill_model: StepLatencyModel
    decode_model: StepLatencyModel
    settings: DecisionSettings

    def pick(self, request: RequestShape, prefills: Sequence[NodeState], decodes: Sequence[NodeState]) -> Pair | None:
        """Return the pair with the soonest first token."""
        if not prefills:
            return None
        ready = sorted(
            (done_s, node.queued_prefill_tokens, node.node_id, node)
            for node, done_s in zip(prefills, prefill_completions_s(self.prefill_model, prefills, request), strict=True)
        )
        arrivals = self._arrivals(request, prefills, decodes)
        default = self.settings.default_bandwidth_bytes_per_s
        best: tuple[float, NodeState, NodeState] | None = None
        best_s = inf
        while arrivals and ready[0][0] + arrivals[0][0] < best_s:
            floor_s, _, _, step_s, decode = heappop(arrivals)
            size_bytes = transfer_bytes(decode, request, self.settings)
            for ready_s, _, name, prefill in ready:
                if ready_s + floor_s >= best_s:
                    break
                if name == decode.node_id:
                    continue
                move_s = transfer_s(decode.links_from.get(name), size_bytes, default)
                if ready_s + (step_s + move_s) < best_s:
                    best_s = ready_s + (step_s + move_s)
                    best = best_s, prefill, decode
        return None if best is None else self._pair(request, *best)

    def _arrivals(
        self, request: RequestShape, prefills: Sequence[NodeState], decodes: Sequence[NodeState]
    ) -> list[tuple[float, int, str, float, NodeState]]:
        """Heap of decode nodes by transfer and first decode step, bounded from below for all prefill nodes at once."""
        default = self.settings.default_bandwidth_bytes_per_s
        names = frozenset(node.node_id for node in prefills)
        steps_s = first_decode_steps_s(self.decode_model, decodes, request)
        sizes_bytes = transfers_bytes(decodes, request, self.settings)
        rates = [
            node.fastest_link_bytes_per_s
            if node.fastest_link_bytes_per_s >= default or names <= node.measured_links
            else default
            for node in decodes
        ]
        arrivals = [
            (step_s + size_bytes / rate, node.used_kv_tokens, node.node_id, step_s, node)
            for node, step_s, size_bytes, rate in zip(decodes, steps_s, sizes_bytes, rates, strict=True)
        ]
        heapify(arrivals)
        return arrivals

    def _pair(self, request: RequestShape, ttft_s: float, prefill: NodeState, decode: NodeState) -> Pair:
        new = request.uncached_tokens(prefill.node_id)
        last = min(new, prefill.token_budget_tokens)
        done = request.prompt_tokens - last
        chunk = BatchShape(running_decodes=0, kv_tokens=done, prefill_tokens=last, done_tokens=done)
        step = BatchShape(running_decodes=decode.running_decodes + 1, kv_tokens=decode.kv_tokens + request.prompt_tokens)
        in_range = self.prefill_model.in_fitted_range(chunk) and self.decode_model.in_fitted_range(step)
        return Pair(prefill, decode, ttft_s, in_range)


def _decode_load(node: NodeState) -> tuple[int, str]:
    return node.used_kv_tokens, node.node_id
