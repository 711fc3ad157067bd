"""What an engine shows of itself, and when: as its publisher does, at the ends of steps."""

import random
from collections.abc import Iterator

import pytest

from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.sim.reporter import Reporter
from vllm_kairos.workload.request import TraceRequest

STEP_S = 0.3
MODEL = LinearStepModel(
    prefill=PrefillCost(fixed_s=STEP_S, per_token_s=0, per_done_token_s=0, per_attention_work_s=0),
    decode=DecodeCost(fixed_s=STEP_S, per_decode_s=0, per_kv_token_s=0),
    extra=PrefillCost(fixed_s=0, per_token_s=0, per_done_token_s=0, per_attention_work_s=0),
)


class Told:
    """Listens to one engine and keeps what its reporter sends: (when, state, age)."""

    def __init__(self, *, period_s: float = 0.1) -> None:
        self.kernel = Kernel()
        spec = EngineSpec(
            name="n", role=Role.BOTH, model=MODEL, kv_blocks=1000, token_budget_tokens=2048, default_chunk_tokens=None
        )
        self.engine = Engine(spec, self.kernel, self, random.Random(0))
        self.sent: list[tuple[float, NodeState, float]] = []
        self.reporter = Reporter(
            self.engine, self.kernel, period_s, lambda state, age_s, _: self.sent.append((self.kernel.now_s, state, age_s))
        )

    def submit(self, at_s: float, *, prompt_tokens: int = 100, output_tokens: int = 1) -> None:
        request = TraceRequest(request_id=f"r{at_s}", arrival_s=at_s, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        self.kernel.at(at_s, lambda: self.engine.submit(Job(request=request)))

    def last(self, by_s: float) -> tuple[float, NodeState, float]:
        return [one for one in self.sent if one[0] <= by_s][-1]

    def step_ended(self, engine: Engine, *, deflection_ended: bool) -> None:
        self.reporter.step_ended(urgent=deflection_ended)

    def first_token(self, engine: Engine, job: Job) -> None: ...

    def finished(self, engine: Engine, job: Job) -> None: ...


@pytest.fixture
def told() -> Iterator[Told]:
    found = Told()
    found.reporter.begin(0.0)
    yield found
    found.reporter.stop()
    found.kernel.run()


def test_during_a_step_the_last_report_is_repeated_with_its_age(told: Told) -> None:
    told.submit(0.05)
    told.kernel.run(0.25)
    at_s, state, age_s = told.sent[-1]
    assert (at_s, age_s) == (pytest.approx(0.2), pytest.approx(0.2))
    assert state.queued_prefill_tokens == 0


def test_the_end_of_a_step_does_not_show_what_arrived_during_it(told: Told) -> None:
    told.submit(0.0)
    told.submit(0.1, prompt_tokens=70)
    told.kernel.run(STEP_S)
    assert told.last(STEP_S)[1].queued_prompt_tokens == ()
    told.kernel.run(2 * STEP_S - 0.01)
    assert told.last(2 * STEP_S)[1].queued_prompt_tokens == ()  # it runs, and nobody looked since


def test_what_waits_since_before_the_step_is_shown_at_its_end(told: Told) -> None:
    for at_s, prompt_tokens in ((0.0, 2048), (0.0, 2048), (0.0, 2048), (0.1, 60)):
        told.submit(at_s, prompt_tokens=prompt_tokens)
    told.kernel.run(2.5 * STEP_S)
    assert told.last(1.5 * STEP_S)[1].queued_prompt_tokens == (2048, 2048)
    assert told.last(2.5 * STEP_S)[1].queued_prompt_tokens == (2048, 60)


def test_falling_idle_is_reported_at_once() -> None:
    told = Told(period_s=100.0)
    told.submit(0.0)
    told.kernel.run(50.0)
    assert [(at_s, age_s) for at_s, _, age_s in told.sent] == [(pytest.approx(STEP_S), 0.0)]


def test_a_run_of_decode_steps_is_read_at_the_end_of_a_step(told: Told) -> None:
    told.submit(0.0, output_tokens=6)
    told.kernel.run(1.25)
    at_s, state, age_s = told.last(1.25)
    assert state.running_decodes == 1
    assert at_s - age_s == pytest.approx(1.2)
    assert state.kv_tokens == 100 + 3
