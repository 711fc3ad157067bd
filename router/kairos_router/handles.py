"""KV handles: what a prefill server hands out for one decode server to pull, once, before its lease ends."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kairos_router.failures import Failure

_RANK_SUFFIX = re.compile(r"_dp\d+$")  # vLLM appends the data-parallel rank to one engine's id


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """The `kv_transfer_params` that one prefill leg returned, and where, when and by which engine."""

    params: Mapping[str, Any]
    prefill_node: str
    generation: int  # HandleBook's count of the node's engines
    received_at_s: float


@dataclass(slots=True)
class _Engine:
    engine_id: str
    generation: int = 0
    previous_id: str = ""
    changed_at_s: float = 0.0


class HandleBook:
    """Knows which engine each prefill node runs, so that a handle of a restarted engine is not sent."""

    def __init__(self, *, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._engines: dict[str, _Engine] = {}

    def saw_engine(self, prefill_node: str, engine_id: str, now_s: float) -> int:
        """Take the engine id of a prefill answer; return the generation that its handle belongs to."""
        seen = _RANK_SUFFIX.sub("", engine_id)
        engine = self._engines.setdefault(prefill_node, _Engine(seen))
        if seen == engine.engine_id:
            return engine.generation
        if seen == engine.previous_id and now_s - engine.changed_at_s <= self._max_age_s:
            return engine.generation - 1  # an answer of the old engine that arrived after one of the new
        engine.engine_id, engine.previous_id = seen, engine.engine_id
        engine.generation += 1
        engine.changed_at_s = now_s
        return engine.generation

    def restarted(self, prefill_node: str) -> None:
        """The node's own report says that it restarted: handles in flight are void."""
        engine = self._engines.get(prefill_node)
        if engine is not None:
            engine.generation += 1
            engine.previous_id = ""

    def forget(self, prefill_node: str) -> None:
        """Drop a removed node."""
        self._engines.pop(prefill_node, None)

    def objection(self, handle: Handle, now_s: float) -> Failure | None:
        """Why `handle` must not be sent any more, None while it may."""
        engine = self._engines.get(handle.prefill_node)
        if engine is not None and engine.generation != handle.generation:
            return Failure.ENGINE_RESTARTED
        if now_s - handle.received_at_s > self._max_age_s:
            return Failure.HANDLE_EXPIRED
        return None
