"""Chunk schedules on the real scheduler."""

from typing import Any

import pytest

from tests.engine.builder import make_request, schedule_params, step, total, warm_decodes


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_decodes_keep_their_token_and_the_total_stays_under_chi(build: Any, async_scheduling: bool) -> None:
    """Case 56: budget 64, A (1,000 tokens, chunk 64) first, then B, C and D."""
    scheduler = build(token_budget=64, async_scheduling=async_scheduling)
    scheduler.add_request(make_request("A", 1000, transfer=schedule_params(8, 8, 8, 64)))
    assert step(scheduler) == {"A": 8}
    decodes = warm_decodes(scheduler, "B", "C", "D", prompt=1)
    prompt_left = True
    while prompt_left:
        tokens = step(scheduler)
        assert all(tokens[request.request_id] == 1 for request in decodes)
        assert tokens["A"] <= 61
        assert total(tokens) <= 64
        prompt_left = scheduler.requests["A"].is_prefill_chunk
    assert scheduler.requests["A"].num_computed_tokens == 1000
