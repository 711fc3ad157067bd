"""Predicted TTFT of a prompt on each kind of instance: queue, own chunks, and what follows them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from vllm_kairos.core.estimates import first_decode_steps_s, prefill_completion_s, transfer_bytes, transfer_s
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.locals import Local, StaticLocals
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape


class Option(NamedTuple):
    """An instance that could run the prompt; `local`, with its chunks, if the decode then stays there."""

    node: NodeState
    decode: NodeState
    ttft_s: float
    local: Local | None

    @property
    def queued_tokens(self) -> int:
        return self.node.prefill_ahead[1]


@dataclass(frozen=True, slots=True)
class TtftEstimates:
    """Predictions for both kinds; chunks of D-heavy instances count their decodes."""

    prefill_model: StepLatencyModel
    decode_model: StepLatencyModel
    settings: DecisionSettings
    chunk_tokens: int  # of D-heavy instances

    def on_d_heavy(self, request: RequestShape, nodes: Sequence[NodeState]) -> list[Option]:
        """Prefill in small chunks beside the node's decodes, behind the prompts it has; the decode stays."""
        locals_ = StaticLocals(self._small_chunks(), self.decode_model)
        options = []
        for node in nodes:
            local = locals_.on(request, node)
            assert local.ttft_s is not None  # there is a model
            options.append(Option(node, node, local.ttft_s, local))
        return options

    def on_p_heavy(self, request: RequestShape, nodes: Sequence[NodeState], decode: NodeState) -> list[Option]:
        """Prefill in steps of the node's token budget, KV transfer to `decode` and its first step there."""
        step_s = first_decode_steps_s(self.decode_model, [decode], request)[0]
        size_bytes = transfer_bytes(decode, request, self.settings)
        default = self.settings.default_bandwidth_bytes_per_s
        return [
            Option(
                node,
                decode,
                self._prefilled_s(request, node)
                + transfer_s(decode.links_from.get(node.node_id), size_bytes, default)
                + step_s,
                None,
            )
            for node in nodes
        ]

    def _prefilled_s(self, request: RequestShape, node: NodeState) -> float:
        """Queue and own prefill; decodes that flowed here take part of each step's budget and make it longer."""
        decodes, kv_tokens = node.decode_load
        alone_s = prefill_completion_s(self.prefill_model, node, request)
        if not decodes:
            return alone_s
        chunk = max(1, node.token_budget_tokens - decodes)
        steps = -(-(node.queued_prefill_tokens + request.uncached_tokens(node.node_id)) // chunk)
        model = self.prefill_model
        return alone_s + steps * (model.latency_s(decodes, kv_tokens, chunk, 0) - model.latency_s(0, 0, chunk, 0))

    def _small_chunks(self) -> DecisionSettings:
        chunk = self.chunk_tokens
        return replace(self.settings, static_chunk_tokens=chunk, unplanned_chunk_tokens=chunk, chunk_candidates_tokens=(chunk,))
