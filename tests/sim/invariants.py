"""What must hold after every event of a simulation, and at its end."""

from collections import Counter
from functools import partial
from typing import Any

from vllm_kairos.core.decision import Assign
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.simulator import Outcome, Simulation


class _Watched:
    """One engine and every job it was given, with what was computed, pulled and lost."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.jobs: list[Job] = []
        self.lost_tokens = self.pulled_tokens = self.hit_tokens = 0
        for name in ("submit", "admit_prefill", "kv_arrived", "preempt_latest"):
            setattr(engine, name, partial(getattr(self, f"_{name}"), getattr(engine, name)))

    def _submit(self, inner: Any, job: Job) -> None:
        self.jobs.append(job)
        inner(job)

    def _admit_prefill(self, inner: Any, job: Job) -> None:
        self.hit_tokens += job.computed_tokens
        inner(job)

    def _kv_arrived(self, inner: Any, job: Job) -> None:
        inner(job)
        self.pulled_tokens += job.tokens - 1

    def _preempt_latest(self, inner: Any, spare: Job | None = None) -> bool:
        job = next(reversed(self.engine._running))
        computed = self.engine.decodes.context_tokens(job) if job in self.engine.decodes else job.computed_tokens
        preempted: bool = inner(spare=spare)
        self.lost_tokens += computed if preempted else 0
        return preempted

    def check(self) -> None:
        self._check_places()
        self._check_blocks()

    def _check_places(self) -> None:
        engine = self.engine
        assert set(engine._running) == set(engine.decodes) | set(engine.prefills)
        places = Counter([*engine.waiting, *engine.unseen, *engine.loading, *engine.arrived, *engine.decodes, *engine.prefills])
        assert all(count == 1 for count in places.values())
        for job in self.jobs:
            ended = job.finished_s == job.finished_s or (job.prefill_only and job.produced_tokens == 1)
            assert (job in places) is not ended
        assert engine.running_requests <= engine.spec.max_running_requests

    def _check_blocks(self) -> None:
        pool, group = self.engine.pool, self.engine.pool._group_blocks
        shared = {block_hash: group(job) for job in self.jobs for block_hash in job.shared_hashes}
        own = sum(self._held(job) - len(job.shared_hashes) * group(job) for job in self.jobs)
        assert pool.in_use_blocks == own + sum(shared.values()) + self.engine._reserved_blocks
        assert 0 <= pool.in_use_blocks <= pool.total_blocks
        assert pool._idle_blocks == sum(pool._idle.values()) <= pool.free_blocks
        assert not pool._idle.keys() & pool._holders.keys()

    def _held(self, job: Job) -> int:
        if job not in self.engine.decodes:
            return job.held_blocks
        return max(job.held_blocks, self.engine.pool.blocks_for(self.engine.decodes.context_tokens(job)))

    def check_end(self) -> None:
        engine, log = self.engine, self.engine.log
        assert [*engine.waiting, *engine.loading, *engine.arrived, *engine._running] == []
        assert engine.pool.in_use_blocks == 0
        final = sum(job.request.prompt_tokens + job.output_tokens - 1 for job in self.jobs)
        computed = log.prefill_tokens + log.decode_tokens + self.pulled_tokens + self.hit_tokens
        assert computed == final + self.lost_tokens


class Watch:
    """Hangs the invariants on a simulation's kernel."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.engines = [_Watched(engine) for engine in simulation.engines.values()]
        self._decided = 0
        for router in simulation.router.routers:
            router._decide = partial(self._decide, router._decide)  # type: ignore[method-assign]
        simulation.kernel.after_each = self.check

    def _decide(self, inner: Any, *args: Any, lease_gone: bool = False) -> None:
        self._decided += not lease_gone
        inner(*args, lease_gone=lease_gone)

    def check(self) -> None:
        assert self._decided == self.simulation.router.open_requests + len(self.simulation.records)
        for watched in self.engines:
            watched.check()

    def run(self) -> Outcome:
        outcome = self.simulation.run()
        self.check_end(outcome)
        return outcome

    def check_end(self, outcome: Outcome) -> None:
        router, network = self.simulation.router, self.simulation.network
        assert len(outcome.requests) == len(self.simulation._workload.requests)
        assert all(record.ok is isinstance(record.decision, Assign) for record in outcome.requests)
        assert router.open_requests == router.tracked_requests == network.active_flows == 0
        for watched in self.engines:
            watched.check_end()
        self._check_outputs(outcome)

    def _check_outputs(self, outcome: Outcome) -> None:
        """Every token but a request's first ends one gap."""
        ok = [record for record in outcome.requests if record.ok]
        gaps = sum(gap.decodes * gap.steps for engine in outcome.engines for gap in engine.gaps)
        assert gaps == sum(record.request.output_tokens - 1 for record in ok)
        for record in ok:
            assert 0 < record.ttft_s <= record.finished_s - record.arrival_s
