"""Chunk schedules on the real scheduler: who gets how many tokens in which step."""

from typing import Any

import pytest

from tests.engine.builder import make_request, run_model, schedule_params, step, total, warm_decodes

MODES = pytest.mark.parametrize("async_scheduling", [False, True])


def chunks_of(scheduler: Any, request: Any) -> list[int]:
    """Step until the prompt of `request` is done; the tokens it got in each step that carried it."""
    chunks = []
    while request.num_output_tokens == 0:
        tokens = step(scheduler).get(request.request_id, 0)
        if tokens:
            chunks.append(tokens)
    return chunks


@MODES
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


@MODES
def test_more_decodes_than_budget_take_turns(build: Any, async_scheduling: bool) -> None:
    """Case 56: the budget is too small for all decodes, so a different one sits out each step."""
    scheduler = build(
        token_budget=6, max_sequences=4, draft_tokens=1, async_scheduling=async_scheduling, kairos={"role": "decode"}
    )
    requests = [make_request(name, 2, max_tokens=1000) for name in "ABCD"]
    for request in requests:
        scheduler.add_request(request)
    while any(request.num_output_tokens == 0 for request in requests):
        step(scheduler)
    served = dict.fromkeys("ABCD", 0)
    for _ in range(40):
        for request in requests:
            request.spec_token_ids = request.spec_token_ids or [7]
        tokens = step(scheduler)
        assert total(tokens) <= 6
        for name in tokens:
            served[name] += 1
    assert max(served.values()) - min(served.values()) <= 2
    assert min(served.values()) >= 25


def test_drafts_are_reserved(build: Any) -> None:
    """Case 57: 3 draft tokens, 4 decodes, budget 32, chunk 32: each decode keeps 4, the chunk holds at most 16."""
    scheduler = build(token_budget=32, draft_tokens=3)
    decodes = warm_decodes(scheduler, "A", "B", "C", "D", prompt=2)
    scheduler.add_request(make_request("P", 200, transfer=schedule_params(32)))
    for request in decodes:
        request.spec_token_ids = [1, 2, 3]
    tokens = step(scheduler)
    assert [tokens[request.request_id] for request in decodes] == [4, 4, 4, 4]
    assert tokens["P"] == 16


def test_a_schedule_changes_no_other_request_and_no_setting(build: Any) -> None:
    """Case 60: threshold 512; A with [64] and B without: A 64 and B 512 in one step."""
    scheduler = build(long_prefill_threshold=512)
    before = repr(scheduler.scheduler_config)
    scheduler.add_request(make_request("A", 2000, transfer=schedule_params(64)))
    scheduler.add_request(make_request("B", 2000))
    for _ in range(3):
        assert step(scheduler) == {"A": 64, "B": 512}
    assert repr(scheduler.scheduler_config) == before


def test_the_smaller_of_entry_and_threshold_counts(build: Any) -> None:
    """Case 60: an entry of 2,048 above the threshold of 512."""
    scheduler = build(long_prefill_threshold=512)
    scheduler.add_request(make_request("A", 4000, transfer=schedule_params(2048)))
    scheduler.add_request(make_request("B", 4000))
    assert step(scheduler) == {"A": 512, "B": 512}


def test_schedules_are_ignored_where_chunking_is_off(build: Any) -> None:
    """Case 60: chunked prefill disabled."""
    scheduler = build(chunked_prefill=False, token_budget=16384)
    scheduler.add_request(make_request("A", 2000, transfer=schedule_params(64)))
    assert step(scheduler) == {"A": 2000}


@pytest.mark.parametrize(("entries", "chunks"), [((64,), [64, 40]), ((64, 64, 500), [64, 40])])
def test_schedule_after_a_prefix_hit_ends_exactly(build: Any, entries: tuple[int, ...], chunks: list[int]) -> None:
    """Case X6: a 200-token prompt of which 96 tokens are cached; what is too much is clipped."""
    scheduler = build(prefix_caching=True)
    prompt = list(range(1, 201))
    first = make_request("first", prompt[:97], max_tokens=1)
    scheduler.add_request(first)
    step(scheduler)
    request = make_request("second", prompt, transfer=schedule_params(*entries), max_tokens=2)
    scheduler.add_request(request)
    assert chunks_of(scheduler, request) == chunks


@pytest.mark.parametrize(("entries", "chunks"), [((64,), [64, 64, 64, 8]), ((64, 64, 500), [64, 64, 72])])
def test_the_last_entry_repeats(build: Any, entries: tuple[int, ...], chunks: list[int]) -> None:
    """Case X6 without a hit: a schedule that is used up goes on with its last entry."""
    scheduler = build()
    request = make_request("A", 200, transfer=schedule_params(*entries))
    scheduler.add_request(request)
    assert chunks_of(scheduler, request) == chunks


@MODES
def test_position_advances_when_a_chunk_is_scheduled(build: Any, async_scheduling: bool) -> None:
    """Case 52: schedule() twice before the first update: chunks 64 then 32, none repeated or skipped."""
    scheduler = build(async_scheduling=async_scheduling)
    scheduler.add_request(make_request("A", 112, transfer=schedule_params(64, 32, 16)))
    first = scheduler.schedule()
    second = scheduler.schedule()
    assert [first.num_scheduled_tokens, second.num_scheduled_tokens] == [{"A": 64}, {"A": 32}]
    for output in (first, second):
        answer = run_model(scheduler, output)
        answer.sampled_token_ids = [[]]
        scheduler.update_from_output(output, answer)
    assert step(scheduler) == {"A": 16}
    assert scheduler.requests["A"].num_output_tokens == 1


def test_no_headroom_waits_but_not_for_ever(build: Any) -> None:
    """Chi below the decodes: the prefill waits max_wait_steps, then gets the floor, again and again."""
    scheduler = build(kairos={"role": "decode", "max_wait_steps": 3, "floor_chunk_tokens": 10})
    warm_decodes(scheduler, "A", "B", "C", "D", prompt=2)
    scheduler.add_request(make_request("P", 25, transfer=schedule_params(4)))
    got = [step(scheduler).get("P", 0) for _ in range(12)]
    assert got == [0, 0, 0, 10, 0, 0, 0, 10, 0, 0, 0, 5]


def test_no_decode_sits_out_for_a_prefill_that_no_slot_is_free_for(build: Any) -> None:
    """The decodes fill both the slots and the budget; a prefill that waits too long could not start all the same."""
    scheduler = build(token_budget=4, max_sequences=4, kairos={"role": "decode", "max_wait_steps": 2})
    decodes = warm_decodes(scheduler, "A", "B", "C", "D", prompt=2)
    scheduler.add_request(make_request("P", 25, transfer=schedule_params(4)))
    assert [step(scheduler) for _ in range(12)] == [{request.request_id: 1 for request in decodes}] * 12


def test_the_oldest_deflected_prefill_is_served_first(build: Any) -> None:
    """Several at once: the first takes its chi, the next what is left under the smallest chi."""
    scheduler = build(kairos={"role": "decode"})
    scheduler.add_request(make_request("A", 100, transfer=schedule_params(64)))
    scheduler.add_request(make_request("B", 300, transfer=schedule_params(128)))
    assert step(scheduler) == {"A": 64}
    assert step(scheduler) == {"A": 36, "B": 28}
    assert step(scheduler) == {"A": 1, "B": 127}


def test_held_out_requests_keep_their_place(build: Any) -> None:
    scheduler = build(kairos={"role": "decode", "default_chunk_tokens": 32})
    for name in "ABCDE":
        scheduler.add_request(make_request(name, 64))
    step(scheduler)
    assert [request.request_id for request in scheduler.waiting] == list("BCDE")


def test_unplanned_prefill_runs_under_the_default_chunk(build: Any) -> None:
    scheduler = build(kairos={"role": "decode", "default_chunk_tokens": 32})
    warm_decodes(scheduler, "A", "B", prompt=4)
    scheduler.add_request(make_request("P", 100))
    assert step(scheduler) == {"A": 1, "B": 1, "P": 30}


@pytest.mark.parametrize("kairos", [None, {"role": "prefill"}, {"role": "both"}])
def test_without_a_default_chunk_unplanned_prefill_is_stock(build: Any, kairos: dict[str, Any] | None) -> None:
    scheduler = build(kairos=kairos)
    scheduler.add_request(make_request("P", 5000))
    assert step(scheduler) == {"P": 5000}


def test_malformed_schedule_runs_as_a_normal_request_and_is_counted(build: Any) -> None:
    scheduler = build()
    bad = [None, 5, [], {"schema": 9, "chunk_schedule": [1]}, {"schema": 1, "chunk_schedule": [0]}, {"schema": 1, "x": 1}]
    for index, value in enumerate(bad):
        scheduler.add_request(make_request(f"R{index}", 100, transfer={"kairos": value}))
    assert step(scheduler) == {f"R{index}": 100 for index in range(len(bad))}
    assert scheduler.malformed_schedules == len(bad) - 1  # null is no schedule at all


def test_priority_order_is_vllms(build: Any) -> None:
    """Case 62: equal priorities and arrival times never compare request objects by us."""
    scheduler = build(policy="priority", kairos={"role": "decode", "default_chunk_tokens": 32})
    for name in ("child-0", "child-1", "child-2"):
        scheduler.add_request(make_request(name, 64, priority=0, arrival_time=5.0))
    for _ in range(8):
        step(scheduler)
    assert all(request.num_output_tokens for request in scheduler.requests.values())
