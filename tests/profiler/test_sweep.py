"""Every planned step fits the engine, and the corners alone are enough for every model."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vllm_kairos.core.regime import Regime
from vllm_kairos.errors import ConfigError
from vllm_kairos.profiler.sweep import (
    FULL,
    MINIMUM_CONFIGURATIONS,
    QUICK,
    SCENE_STEPS,
    Scene,
    SweepGrid,
    SweepLimits,
    SweepPlan,
    plan_sweep,
)

CANDIDATES = (2048, 1024, 512, 256, 128, 64)
CPU = SweepLimits(
    max_model_len_tokens=4096, max_running_requests=16, token_budget_tokens=2048, block_size_tokens=32, kv_blocks=1456
)


@st.composite
def limits(draw: st.DrawFn) -> SweepLimits:
    block = draw(st.sampled_from([16, 32, 128]))
    length = draw(st.integers(2 * SCENE_STEPS, 131072))
    blocks = -(-length // block) + draw(st.integers(2, 20000))
    return SweepLimits(
        max_model_len_tokens=length,
        max_running_requests=draw(st.integers(2, 1024)),
        token_budget_tokens=draw(st.sampled_from([64, 512, 2048, 8192, 16384])),
        block_size_tokens=block,
        kv_blocks=blocks,
    )


def _configurations(scenes: tuple[Scene, ...], regime: Regime) -> set[str]:
    return {s.configuration(p) for s in scenes for p in s.probes if s.regime(p) is regime}


def _all(plan: SweepPlan) -> list[Scene]:
    return [*plan.corners, *plan.scenes]


@given(limits(), st.sampled_from([QUICK, FULL]))
@settings(max_examples=60, deadline=None)
def test_every_step_fits_the_engine(limit: SweepLimits, grid: SweepGrid) -> None:
    for scene in _all(plan_sweep(limit, grid, CANDIDATES)):
        held = scene.running_decodes * limit.blocks_for(scene.context_tokens + SCENE_STEPS)
        assert scene.running_decodes <= limit.max_running_requests
        assert scene.context_tokens + SCENE_STEPS < limit.max_model_len_tokens
        assert held < limit.kv_blocks
        for probe in scene.probes:
            prompt = probe.done_tokens + probe.prefill_tokens + 1
            assert scene.running_decodes + probe.prefill_tokens <= limit.token_budget_tokens or not probe.prefill_tokens
            assert prompt < limit.max_model_len_tokens
            assert not probe.prefill_tokens or scene.running_decodes < limit.max_running_requests
            assert not probe.prefill_tokens or held + limit.blocks_for(prompt) < limit.kv_blocks


@given(limits(), st.sampled_from([QUICK, FULL]))
@settings(max_examples=60, deadline=None)
def test_a_scene_never_outlives_the_room_kept_for_its_decodes(limit: SweepLimits, grid: SweepGrid) -> None:
    for scene in _all(plan_sweep(limit, grid, CANDIDATES)):
        prompts = sum(probe.prefill_tokens > 0 for probe in scene.probes)
        assert len(scene.probes) + prompts + 4 <= SCENE_STEPS or not scene.running_decodes


@given(limits())
@settings(max_examples=60, deadline=None)
def test_the_corners_alone_fit_every_model(limit: SweepLimits) -> None:
    assume(limit.max_model_len_tokens >= 512 and limit.max_running_requests >= 4 and limit.token_budget_tokens >= 512)
    assume(limit.kv_blocks > 4 * limit.blocks_for(limit.max_model_len_tokens))
    corners = plan_sweep(limit, QUICK, CANDIDATES).corners
    for regime, needed in MINIMUM_CONFIGURATIONS.items():
        assert len(_configurations(corners, regime)) >= needed, regime


@pytest.mark.parametrize("grid", [QUICK, FULL])
def test_a_sweep_of_the_cpu_engine_covers_every_axis(grid: SweepGrid) -> None:
    plan = plan_sweep(CPU, grid, CANDIDATES)
    mixed = [(s.running_decodes, p) for s in plan.scenes for p in s.probes if s.regime(p) is Regime.MIXED]
    assert {decodes + probe.prefill_tokens for decodes, probe in mixed} == set(CANDIDATES)
    assert max(decodes for decodes, _ in mixed) == 15
    assert {0} < {probe.done_tokens for _, probe in mixed}
    decodes = {s.running_decodes for s in plan.scenes for p in s.probes if s.regime(p) is Regime.DECODE}
    assert {1, 16} <= decodes


def test_chunk_candidates_count_the_decodes() -> None:
    plan = plan_sweep(CPU, QUICK, (128,))
    mixed = [(s, p) for s in plan.scenes for p in s.probes if s.regime(p) is Regime.MIXED]
    assert mixed
    assert all(scene.running_decodes + probe.prefill_tokens == 128 for scene, probe in mixed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_model_len_tokens": 100}, "--max-model-len must be >= 192 to profile, got 100"),
        ({"max_running_requests": 1}, "--max-num-seqs must be >= 2 to profile, got 1"),
        ({"kv_blocks": 8}, "KV cache must hold one sequence of 4096 tokens to profile, holds 256"),
    ],
)
def test_an_engine_too_small_to_profile_is_named(changes: dict[str, int], message: str) -> None:
    values = {name: getattr(CPU, name) for name in CPU.__slots__}
    with pytest.raises(ConfigError, match=message):
        SweepLimits(**values | changes)


def test_chunk_candidates_beyond_the_token_budget_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--chunk-candidates must have a value in 2\.\.2048, got \[4096\]"):
        plan_sweep(CPU, QUICK, (4096,))
