"""A sweep measures what it planned, survives a cut, and leaves the engine empty."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiler.fakes import FakeEngine, facts
from vllm_kairos.core.regime import Regime
from vllm_kairos.engine.compat_inprocess import StepPart, StepRecord
from vllm_kairos.errors import ProfileError
from vllm_kairos.profiler.recorder import Recorder, batch_of, condense, configurations
from vllm_kairos.profiler.runner import SweepOutcome, SweepProgress, run_sweep
from vllm_kairos.profiler.sweep import MINIMUM_CONFIGURATIONS, QUICK, Probe, Scene, SweepPlan, limits_of, plan_sweep


def _sweep(engine: FakeEngine, *, passes: int = 1, stop_after: int | None = None) -> tuple[SweepOutcome, list[SweepProgress]]:
    plan = plan_sweep(limits_of(engine.facts), QUICK, (2048, 512, 128, 64))
    seen: list[SweepProgress] = []
    outcome = run_sweep(engine, plan, passes=passes, time_is_up=lambda: len(seen) == stop_after, on_progress=seen.append)
    return outcome, seen


def test_every_planned_probe_is_measured_and_nothing_is_left() -> None:
    engine = FakeEngine()
    outcome, seen = _sweep(engine, passes=2)
    assert engine.requests == {}
    assert not outcome.cut
    assert outcome.recorder.unplanned_steps == 0
    assert len(outcome.recorder.samples) == len(seen) == seen[-1].planned


@given(
    length=st.integers(192, 9000),
    seqs=st.integers(2, 40),
    budget=st.sampled_from([64, 512, 2048]),
    spare_blocks=st.integers(2, 1500),
)
@settings(max_examples=15, deadline=None)
def test_a_sweep_stays_within_any_engine(length: int, seqs: int, budget: int, spare_blocks: int) -> None:
    blocks = -(-length // 32) + spare_blocks
    engine = FakeEngine(
        facts(max_model_len_tokens=length, max_running_requests=seqs, token_budget_tokens=budget, kv_blocks=blocks)
    )
    outcome, _ = _sweep(engine)  # the fake asserts every limit at every step
    assert outcome.recorder.unplanned_steps == 0


def test_a_cut_leaves_the_engine_empty_and_every_model_measured_once_the_corners_are_done() -> None:
    engine = FakeEngine()
    corner_steps = sum(len(scene.probes) for scene in plan_sweep(limits_of(engine.facts), QUICK, (2048, 512, 128, 64)).corners)
    outcome, _ = _sweep(engine, passes=3, stop_after=corner_steps)
    assert outcome.cut
    assert engine.requests == {}
    counts = configurations(outcome.recorder.samples)
    assert all(counts[regime] >= needed for regime, needed in MINIMUM_CONFIGURATIONS.items())


def test_the_first_step_of_a_batch_size_is_discarded() -> None:
    engine = FakeEngine()
    scene = Scene(0, 0, (Probe(64, 0), Probe(64, 500), Probe(128, 0)))
    outcome = run_sweep(engine, SweepPlan((scene,), ()), passes=0, time_is_up=lambda: False, on_progress=lambda _: None)
    assert engine.steps == 5
    assert outcome.recorder.warmup_steps == 2
    assert [sample.batch.done_tokens for sample in outcome.recorder.samples] == [0, 500, 0]


def test_an_engine_that_cannot_run_the_decodes_is_an_error_and_ends_empty() -> None:
    class Stubborn(FakeEngine):
        def step(self, budget_tokens: int | None = None) -> StepRecord:
            return StepRecord((StepPart(1, 31, False),), 0.1, 0.1)

    engine = Stubborn()
    plan = SweepPlan((Scene(2, 32, (Probe(),)),), ())
    with pytest.raises(ProfileError, match="must run 2 decodes of 32 tokens at once, it did not within 3 steps"):
        run_sweep(engine, plan, passes=0, time_is_up=lambda: False, on_progress=lambda _: None)
    assert engine.requests == {}


def test_a_step_that_is_not_the_planned_one_gives_no_sample() -> None:
    recorder = Recorder()
    recorder.record(
        Scene(1, 32, (Probe(),)), Probe(64, 0), StepRecord((StepPart(1, 32, True), StepPart(32, 0, False)), 0.1, 0.1)
    )
    assert (recorder.samples, recorder.unplanned_steps) == ([], 1)


def test_kv_tokens_of_a_batch_include_the_prompts_own() -> None:
    batch = batch_of(StepRecord((StepPart(1, 300, True), StepPart(1, 310, True), StepPart(64, 500, False)), 0.1, 0.1))
    assert (batch.running_decodes, batch.kv_tokens, batch.prefill_tokens, batch.done_tokens) == (2, 1110, 64, 500)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=7))
def test_a_condensed_configuration_is_one_of_its_repeats_with_half_of_them_no_faster(times_s: list[float]) -> None:
    recorder = Recorder()
    for time_s in times_s:
        recorder.record(Scene(1, 32, ()), Probe(), StepRecord((StepPart(1, 32, True),), time_s, time_s))
    (sample,) = condense(recorder.samples).samples
    assert sample.step_s in times_s
    assert sum(time_s <= sample.step_s for time_s in times_s) * 2 >= len(times_s)
    assert sum(time_s >= sample.step_s for time_s in times_s) * 2 >= len(times_s)


def test_disturbed_repeats_are_counted_and_do_not_move_the_median() -> None:
    engine = FakeEngine(slow_steps={number: 60.0 for number in range(10, 400, 50)})
    outcome, _ = _sweep(engine, passes=3)
    calm, _ = _sweep(FakeEngine(), passes=3)
    disturbed = condense(outcome.recorder.samples)
    assert disturbed.disturbed > 0
    pairs = zip(_by_name(disturbed.samples), _by_name(condense(calm.recorder.samples).samples), strict=True)
    assert sum(abs(a / b - 1) > 0.05 for a, b in pairs) <= 2


def _by_name(samples: tuple) -> list[float]:  # type: ignore[type-arg]
    return [sample.step_s for sample in sorted(samples, key=lambda sample: sample.configuration)]


def test_repeats_of_a_configuration_lie_a_pass_apart() -> None:
    engine = FakeEngine()
    outcome, _ = _sweep(engine, passes=2)
    prompts = [sample for sample in outcome.recorder.samples if sample.batch.prefill_tokens]
    assert all(a.configuration != b.configuration for a, b in itertools.pairwise(prompts))
    assert set(configurations(prompts)) == set(Regime)
