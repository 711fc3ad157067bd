"""Chunks that must not end just anywhere: state blocks of hybrid models, media items, drafter look-ahead."""

from typing import Any

import pytest

from tests.engine.builder import image, make_request, schedule_params, step


def as_hybrid(scheduler: Any, block: int) -> Any:
    """Let `scheduler` align chunks to state blocks, as vLLM does for hybrid models in align mode."""
    scheduler.need_mamba_block_aligned_split = True
    scheduler.cache_config.block_size = block
    scheduler.block_size = scheduler.hash_block_size = block
    return scheduler


def with_images(scheduler: Any, encoder_budget: int = 1024) -> Any:
    """Let `scheduler` take media items, as vLLM does for a multimodal model."""
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    scheduler.max_num_encoder_input_tokens = encoder_budget
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=encoder_budget)
    scheduler.scheduler_config.disable_chunked_mm_input = True
    return scheduler


@pytest.mark.parametrize("entries", [(64,), (600,)])
def test_chunk_is_raised_to_one_state_block(build: Any, entries: tuple[int, ...]) -> None:
    """Case 58: block 528 with schedule [64, ...] and [600]: whole blocks, and an end in sight."""
    scheduler = as_hybrid(build(block_size=528), 528)
    scheduler.add_request(make_request("A", 1200, transfer=schedule_params(*entries), block_size=528))
    chunks = [step(scheduler).get("A") for _ in range(4)]
    assert chunks[:2] == [528, 528]
    assert sum(filter(None, chunks[:-1])) >= 1200
    assert scheduler.requests["A"].num_output_tokens >= 1


@pytest.mark.parametrize("start", [10, 0])
def test_media_item_stays_in_one_chunk(build: Any, start: int) -> None:
    """Case 59: a 1,024-token image, schedule [256, ...], no chunked media input: never split, never stuck."""
    scheduler = with_images(build())
    request = make_request("A", 1500, transfer=schedule_params(256), mm_features=[image(start, 1024)])
    scheduler.add_request(request)
    computed = []
    for _ in range(10):
        step(scheduler)
        computed.append(min(request.num_computed_tokens, 1500))
    assert not [tokens for tokens in computed if start < tokens < start + 1024]
    assert request.num_output_tokens > 0


def test_chunk_does_not_end_inside_the_drafters_look_ahead(build: Any) -> None:
    """A chunk that vLLM would shrink to nothing is widened to the prompt's end instead."""
    scheduler = build()
    scheduler.num_prefill_lookahead = 4
    request = make_request("A", 35, transfer=schedule_params(32, 1))
    scheduler.add_request(request)
    for _ in range(8):
        step(scheduler)
    assert request.num_output_tokens > 0


def test_seeded_prompt_runs_whole_on_the_cpu(build: Any) -> None:
    """A seeded request that is split kills vLLM's CPU engine: it gets all its tokens in one step, or waits."""
    scheduler = build(token_budget=128, kairos={"role": "decode", "default_chunk_tokens": 32})
    scheduler.add_request(make_request("A", 100, transfer=schedule_params(16), seed=7))
    scheduler.add_request(make_request("B", 100, seed=7))
    assert [step(scheduler) for _ in range(3)] == [{"A": 100}, {"A": 1, "B": 100}, {"A": 1, "B": 1}]


def test_seeded_prompt_beyond_one_step_is_refused_on_the_cpu(build: Any) -> None:
    scheduler = build(token_budget=128, kairos={"role": "decode"})
    scheduler.add_request(make_request("A", 200, seed=7))
    step(scheduler)
    assert not scheduler.requests
