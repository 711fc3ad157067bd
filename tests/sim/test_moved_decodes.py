"""Moving running decodes between engines: tokens, KV blocks, gaps and times add up whatever is moved when."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.sim.taichi_cluster import KV_BYTES_PER_TOKEN, MODEL, NIC_BYTES_PER_S, cluster
from vllm_kairos.core.gap_cause import Cause
from vllm_kairos.core.node import NodeState
from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.moves import Move, RunningDecode
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.simulator import Outcome, Simulation
from vllm_kairos.workload.generate import generate
from vllm_kairos.workload.request import TraceRequest, Workload

LONE = TraceRequest(request_id="r", arrival_s=1.0, prompt_tokens=1000, output_tokens=200)


@dataclass
class Script:
    """Moves request `r` to the next target as soon as it decodes elsewhere and has had as many tokens."""

    steps: list[tuple[int, str]]

    def moves(self, decodes: Sequence[RunningDecode], nodes: Sequence[NodeState], under_way: Sequence[Move]) -> list[Move]:
        if not self.steps or not decodes or decodes[0].output_tokens < self.steps[0][0]:
            return []
        one, target = decodes[0], self.steps.pop(0)[1]
        return [Move(request_id=one.request_id, source=one.node_id, target=target, kv_tokens=one.kv_tokens)]


@dataclass
class Shuffle:
    """Moves decodes at random, whether that makes sense or not."""

    rng: random.Random
    names: Sequence[str]
    share: float = 0.05
    asked: list[str] = field(default_factory=list)

    def moves(self, decodes: Sequence[RunningDecode], nodes: Sequence[NodeState], under_way: Sequence[Move]) -> list[Move]:
        chosen = [decode for decode in decodes if self.rng.random() < self.share]
        self.asked += [decode.request_id for decode in chosen]
        return [
            Move(
                request_id=decode.request_id,
                source=decode.node_id,
                target=self.rng.choice([name for name in self.names if name != decode.node_id]),
                kv_tokens=decode.kv_tokens,
            )
            for decode in chosen
        ]


def run_lone(*steps: tuple[int, str]) -> Outcome:
    spec = cluster(1, 1)
    policy = build_policy("taichi", spec).policy
    return Simulation(spec, Workload(name="lone", requests=(LONE,)), policy, mover=Script(list(steps))).run()


def gap_s(outcome: Outcome, *causes: Cause) -> float:
    runs = [gaps for engine in outcome.engines for gaps in engine.gaps if not causes or gaps.cause in causes]
    return sum(gaps.decodes * (gaps.first_s * gaps.steps + gaps.slope_s * gaps.steps * (gaps.steps - 1) / 2) for gaps in runs)


def gap_count(outcome: Outcome, *causes: Cause) -> int:
    runs = [gaps for engine in outcome.engines for gaps in engine.gaps if not causes or gaps.cause in causes]
    return sum(gaps.decodes * gaps.steps for gaps in runs)


def test_a_decode_goes_on_elsewhere_with_the_tokens_it_has() -> None:
    outcome = run_lone((50, "p0"), (120, "d0"))
    (record,) = outcome.requests
    tokens = {engine.name: engine.decode_tokens for engine in outcome.engines}
    assert record.migrations == 2
    assert tokens["p0"] + tokens["d0"] == LONE.output_tokens - 1  # its prompt was computed where it began
    assert 60 <= tokens["p0"] <= 80
    assert sum(engine.prefill_tokens for engine in outcome.engines) == LONE.prompt_tokens
    assert outcome.transfers == 2


def test_its_gaps_add_up_to_the_time_it_took_and_a_move_makes_one_of_them() -> None:
    outcome = run_lone((50, "p0"), (120, "d0"))
    (record,) = outcome.requests
    assert gap_count(outcome) == LONE.output_tokens - 1
    assert gap_count(outcome, Cause.MIGRATED) == 2
    assert gap_s(outcome) == pytest.approx(record.finished_s - LONE.arrival_s - record.ttft_s)


def test_it_ends_later_by_what_the_moves_took() -> None:
    stays, goes = run_lone(), run_lone((50, "p0"), (120, "d0"))
    transfers_s = goes.transferred_bytes / NIC_BYTES_PER_S
    extra_s = goes.requests[0].finished_s - stays.requests[0].finished_s
    assert goes.requests[0].ttft_s == stays.requests[0].ttft_s
    assert goes.requests[0].breakdown == stays.requests[0].breakdown
    assert transfers_s < extra_s < transfers_s + 0.01
    pauses_s = gap_s(goes, Cause.MIGRATED) - 2 * MODEL.latency_s(1, 1100, 0, 0)
    assert pauses_s == pytest.approx(extra_s, abs=1e-4)


def test_all_of_its_kv_crosses_the_network() -> None:
    outcome = run_lone((50, "p0"))
    tokens = outcome.transferred_bytes / KV_BYTES_PER_TOKEN
    moved_after = LONE.output_tokens - next(engine.decode_tokens for engine in outcome.engines if engine.name == "p0")
    assert tokens == LONE.prompt_tokens + moved_after - 1


class Invariants:
    """Checked after every event: no engine has lost track of a block."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation, self.checks = simulation, 0

    def __call__(self) -> None:
        self.checks += 1
        held = 0
        for one in self.simulation.router._open.values():
            held += sum(job.held_blocks for job in (one.prefill, *one.left, one.decode) if job is not None)
        for engine in self.simulation.engines.values():
            pool = engine.pool
            grown = sum(max(0, pool.blocks_for(engine.decodes.context_tokens(job)) - job.held_blocks) for job in engine.decodes)
            held += grown + engine._reserved_blocks
            assert 0 <= pool.in_use_blocks <= pool.total_blocks
        assert held == sum(engine.pool.in_use_blocks for engine in self.simulation.engines.values())


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000), kv_blocks=st.sampled_from([2500, 6000]))
def test_requests_tokens_and_blocks_are_conserved_whatever_moves(seed: int, kv_blocks: int) -> None:
    spec = cluster(2, 2, kv_blocks=kv_blocks)
    workload = generate("Bursty", requests=12, seed=seed, rate_rps=6.0)
    shuffle = Shuffle(random.Random(seed), [engine.name for engine in spec.engines])
    simulation = Simulation(spec, workload, build_policy("taichi:128", spec).policy, mover=shuffle)
    check = simulation.kernel.after_each = Invariants(simulation)
    try:
        outcome = simulation.run()
    except SimulationError:  # random moves may wait for each other
        assume(False)
    assert check.checks
    assert len(outcome.requests) == len(workload.requests)
    assert all(record.ok for record in outcome.requests)
    assert 0 < sum(record.migrations for record in outcome.requests) <= len(shuffle.asked)
    assert gap_count(outcome) == sum(request.output_tokens - 1 for request in workload.requests)
    assert gap_count(outcome, Cause.MIGRATED) <= sum(record.migrations for record in outcome.requests)
    assert all(engine.pool.in_use_blocks == 0 and not engine.running_requests for engine in simulation.engines.values())
    assert simulation.network.active_flows == simulation.router.open_requests == 0


def test_moves_that_wait_for_each_other_for_ever_are_an_error() -> None:
    spec = cluster(2, 2, kv_blocks=2500)
    shuffle = Shuffle(random.Random(4), [engine.name for engine in spec.engines])
    workload = generate("Bursty", requests=12, seed=4, rate_rps=6.0)
    simulation = Simulation(spec, workload, build_policy("taichi:128", spec).policy, mover=shuffle)
    with pytest.raises(SimulationError, match="wait for KV blocks which others hold"):
        simulation.run()


def test_equal_runs_are_equal() -> None:
    def once() -> Outcome:
        spec = cluster(2, 2, kv_blocks=6000)
        shuffle = Shuffle(random.Random(7), [engine.name for engine in spec.engines])
        workload = generate("Bursty", requests=15, seed=7, rate_rps=6.0)
        return Simulation(spec, workload, build_policy("taichi:128", spec).policy, mover=shuffle).run()

    assert once() == once()
