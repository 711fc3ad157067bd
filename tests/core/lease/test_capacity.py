"""What a node grants: never more than it can do in time or hold, and nothing for lack of a reason."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import A100, models
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.lease import Load, Share, Turned, capacity, turned

BUSY = Load(running_decodes=40, kv_tokens=40_000, free_kv_blocks=3000, free_slots=200)
loads = st.builds(
    Load,
    running_decodes=st.integers(0, 200),
    kv_tokens=st.integers(0, 200_000),
    incoming_requests=st.integers(0, 20),
    incoming_kv_tokens=st.integers(0, 50_000),
    queued_prompts=st.integers(0, 20),
    queued_prefill_tokens=st.integers(0, 50_000),
    free_kv_blocks=st.integers(0, 5000),
    needed_kv_blocks=st.integers(0, 5000),
    free_slots=st.integers(-5, 256),
    output_tokens=st.integers(1, 1000),
)


def of(load: Load, model: StepLatencyModel = A100, **changes: float) -> tuple[Share, int]:
    terms = {"tbt_s": 0.07, "beta": 0.9, "horizon_s": 1.0} | changes
    return capacity(model, load, token_budget_tokens=8192, **terms)


@given(loads, models(), st.floats(0.02, 5), st.floats(0.01, 0.3))
def test_what_is_granted_is_computed_in_time(load: Load, model: StepLatencyModel, horizon_s: float, tbt_s: float) -> None:
    share, steps = of(load, model, horizon_s=horizon_s, tbt_s=tbt_s)
    assert min(share) >= 0
    if not share.prefill_tokens:
        return
    decodes = load.running_decodes + load.incoming_requests + load.queued_prompts
    kv_tokens = load.kv_tokens + load.incoming_kv_tokens + load.queued_prefill_tokens
    chunk = -(-share.prefill_tokens // steps)
    step_s = model.latency_s(decodes, kv_tokens, chunk, 0)
    assert step_s <= (min(0.9 * tbt_s, horizon_s) if decodes else horizon_s)
    assert chunk + decodes <= 8192
    # Steps but the last are as long as the longest at most; whole ones take the horizon.
    assert (steps - 1) * step_s <= horizon_s * (1 + 1e-9)


@given(loads)
def test_blocks_and_output_are_what_is_left(load: Load) -> None:
    share, _ = of(load)
    spare = max(0, load.free_kv_blocks - load.needed_kv_blocks)
    assert share.kv_blocks == spare
    assert share.output_tokens <= spare * 16
    assert share.output_tokens <= max(0, load.free_slots) * load.output_tokens


@given(loads, st.sampled_from(["running_decodes", "kv_tokens", "incoming_requests", "queued_prefill_tokens", "queued_prompts"]))
def test_more_load_is_never_granted_more(load: Load, name: str) -> None:
    more = replace(load, **{name: getattr(load, name) + 50})
    if load.running_decodes:  # the first decode alone changes what bounds a step
        assert of(more)[0].prefill_tokens <= of(load)[0].prefill_tokens


def test_no_prefill_where_a_decode_step_alone_takes_too_long() -> None:
    assert of(BUSY, tbt_s=0.01)[0].prefill_tokens == 0


def test_an_idle_node_grants_what_it_computes_within_the_horizon() -> None:
    idle = Load(running_decodes=0, kv_tokens=0, free_kv_blocks=3000, free_slots=256)
    assert of(idle, horizon_s=0.1)[0].prefill_tokens > 1000
    assert of(idle, horizon_s=2.0)[0].prefill_tokens > 8192


@pytest.mark.parametrize(
    ("changes", "missed", "expected"),
    [
        ({}, 0, None),
        ({}, 1, Turned.MISSED_DEADLINE),
        ({"needed_kv_blocks": 3000}, 0, None),
        ({"needed_kv_blocks": 3001}, 0, Turned.LOW_BLOCKS),
        ({"incoming_kv_tokens": 4000}, 0, None),
        ({"incoming_kv_tokens": 4001}, 0, Turned.INCOMING_KV),
    ],
)
def test_when_a_lease_is_taken_back(changes: dict[str, int], missed: int, expected: Turned | None) -> None:
    granted = Share(1000, 1000, 1000)
    assert turned(BUSY, granted, replace(BUSY, **changes), missed_deadlines=missed) is expected
