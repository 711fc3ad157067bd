"""Moves of running decodes between engines: what decides on them is told of every decode and answers with moves."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vllm_kairos.core.node import NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningDecode:
    """A decode as the router knows it, since every token passes through it."""

    request_id: str
    node_id: str
    kv_tokens: int
    output_tokens: int  # so far
    node_tokens: int  # of those, the ones since it began to decode on this node
    tpot_s: float  # mean gap so far, if its next token came at once
    tbt_slo_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Let a running decode go on elsewhere; it takes `kv_tokens` tokens of KV there."""

    request_id: str
    source: str
    target: str
    kv_tokens: int


class DecodeMover(Protocol):
    """Asked once per heartbeat."""

    def moves(self, decodes: Sequence[RunningDecode], nodes: Sequence[NodeState], under_way: Sequence[Move]) -> Sequence[Move]:
        """Choose among `decodes`, none of which is `under_way`; reports in `nodes` may not show those that are."""
