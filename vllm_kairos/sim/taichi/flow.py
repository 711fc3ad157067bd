"""Flowing decode scheduling: TPOT slack of some decodes becomes KV space for others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.sim.moves import Move, RunningDecode
from vllm_kairos.sim.taichi.settings import TaichiSettings


@dataclass(frozen=True, slots=True)
class FlowingDecodes:
    """Moves decodes out of D-heavy instances that run full, and back before their TPOT objective is missed.

    Out: from a D-heavy instance above the watermark, those with the most tokens since they came to it, as
    long gaps weigh least on them; none whose TPOT leaves no slack, and one that flowed back counts anew.
    Back: from a P-heavy instance, those whose TPOT has reached its share of the objective, the most
    endangered first, to the D-heavy instance with the most KV free, into what the watermark keeps clear.
    """

    settings: TaichiSettings

    def moves(self, decodes: Sequence[RunningDecode], nodes: Sequence[NodeState], under_way: Sequence[Move]) -> list[Move]:
        """Choose what flows, back before out."""
        space = _Space(nodes, under_way)
        at_risk = {decode.request_id for decode in decodes if decode.tpot_s >= self.settings.tpot_share * decode.tbt_slo_s}
        on_p = [decode for decode in decodes if space.is_p_heavy(decode.node_id) and decode.request_id in at_risk]
        on_d = [decode for decode in decodes if not space.is_p_heavy(decode.node_id) and decode.request_id not in at_risk]
        return [*self._back(on_p, space), *self._out(on_d, space)]

    def _back(self, decodes: Iterable[RunningDecode], space: "_Space") -> list[Move]:
        moves = []
        for decode in sorted(decodes, key=_endangered):
            target = space.roomiest(decode.kv_tokens, p_heavy=False, watermark=1.0)
            if target is not None:
                moves.append(space.move(decode, target))
        return moves

    def _out(self, decodes: Iterable[RunningDecode], space: "_Space") -> list[Move]:
        moves = []
        for decode in sorted(decodes, key=_longest):
            if not space.above(decode.node_id, self.settings.kv_watermark):
                continue
            target = space.roomiest(decode.kv_tokens, p_heavy=True, watermark=self.settings.kv_watermark)
            if target is not None:
                moves.append(space.move(decode, target))
        return moves


class _Space:
    """KV blocks and slots per node, with all moves made as if they were through."""

    def __init__(self, nodes: Sequence[NodeState], under_way: Sequence[Move]) -> None:
        self._nodes = {node.node_id: node for node in nodes if node.accepting and not node.stale}
        self._used = {name: node.total_kv_blocks - node.free_kv_blocks for name, node in self._nodes.items()}
        self._running = {name: node.decode_load[0] for name, node in self._nodes.items()}
        for move in under_way:
            self._book(move)

    def is_p_heavy(self, name: str) -> bool:
        return name in self._nodes and self._nodes[name].role is Role.PREFILL

    def above(self, name: str, watermark: float) -> bool:
        """Whether more than `watermark` of the node's KV is in use."""
        return name in self._nodes and self._used[name] > watermark * self._nodes[name].total_kv_blocks

    def roomiest(self, kv_tokens: int, *, p_heavy: bool, watermark: float) -> NodeState | None:
        """Return the node of a kind with the most free KV that a decode of `kv_tokens` fits on, None if there is none."""
        fitting = [
            (self._used[name] - node.total_kv_blocks, name, node)
            for name, node in self._nodes.items()
            if (node.role is Role.PREFILL) is p_heavy
            and self._running[name] < node.max_running_requests
            and self._used[name] + _blocks(node, kv_tokens) <= watermark * node.total_kv_blocks
        ]
        return min(fitting)[2] if fitting else None

    def move(self, decode: RunningDecode, target: NodeState) -> Move:
        """Book and return the move of `decode`."""
        move = Move(request_id=decode.request_id, source=decode.node_id, target=target.node_id, kv_tokens=decode.kv_tokens)
        self._book(move)
        return move

    def _book(self, move: Move) -> None:
        for name, sign in ((move.source, -1), (move.target, 1)):
            if name in self._nodes:
                self._used[name] += sign * _blocks(self._nodes[name], move.kv_tokens)
                self._running[name] += sign


def _blocks(node: NodeState, kv_tokens: int) -> int:
    return node.kv_blocks_for(kv_tokens + 1)  # the next token's too


def _longest(decode: RunningDecode) -> tuple[int, float, str]:
    return -decode.node_tokens, decode.tpot_s / decode.tbt_slo_s, decode.request_id


def _endangered(decode: RunningDecode) -> tuple[float, str]:
    return -decode.tpot_s / decode.tbt_slo_s, decode.request_id
