"""The router's part in moving running decodes: it asks the mover, and sees each move through."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from vllm_kairos.core.node import NodeState
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.moves import DecodeMover, Move, RunningDecode
from vllm_kairos.sim.record import Objectives


@dataclass(slots=True)
class Migrations:
    """A move takes the decode out of its batch, which keeps the KV until the other engine has pulled it.

    `after_hop` runs something one hop later; `moved` is told the engine that was left, the leg that ended
    there and the name of the engine where a new one has to start.
    """

    mover: DecodeMover
    objectives: Objectives
    after_hop: Callable[[Callable[[], None]], None]
    moved: Callable[[Engine, Job, str], None]
    under_way: dict[str, Move] = field(default_factory=dict)

    def tick(self, engines: Mapping[str, Engine], nodes: Sequence[NodeState], now_s: float) -> None:
        """Ask for moves and start them."""
        jobs: dict[str, Job] = {}
        decodes: list[RunningDecode] = []
        for engine in engines.values():
            for job, output_tokens in self._decoding(engine):
                jobs[job.request.request_id] = job
                decodes.append(self._running(engine, job, output_tokens, now_s))
        for move in self.mover.moves(decodes, nodes, tuple(self.under_way.values())):
            self.under_way[move.request_id] = move
            leave = partial(self._leave, engines[move.source], jobs[move.request_id], move)
            self.after_hop(leave)

    def arrived(self, request_id: str) -> None:
        """Take note that the KV of `request_id` was pulled, whether by a move or not."""
        self.under_way.pop(request_id, None)

    def _decoding(self, engine: Engine) -> Iterator[tuple[Job, int]]:
        """Decodes with a first token that no move is under way for."""
        for job, output_tokens in engine.decoding():
            if output_tokens and job.request.request_id not in self.under_way:
                yield job, output_tokens

    def _running(self, engine: Engine, job: Job, output_tokens: int, now_s: float) -> RunningDecode:
        return RunningDecode(
            request_id=job.request.request_id,
            node_id=engine.name,
            kv_tokens=job.request.prompt_tokens + output_tokens,
            output_tokens=output_tokens,
            node_tokens=output_tokens - job.produced_tokens,
            tpot_s=(now_s - job.first_token_s) / output_tokens,
            tbt_slo_s=job.request.tbt_slo_s or self.objectives.tbt_s,
        )

    def _leave(self, engine: Engine, job: Job, move: Move) -> None:
        engine.export(job, partial(self._left, engine, job, move))

    def _left(self, engine: Engine, job: Job, move: Move, left: bool) -> None:
        if left:
            self.moved(engine, job, move.target)
        else:
            self.under_way.pop(move.request_id, None)
