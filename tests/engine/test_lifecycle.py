"""Preemption, remote KV, aborts and hopeless requests, on the real scheduler."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.builder import left_behind, make_request, remote_params, run_model, schedule_params, step, warm_decodes

MODES = pytest.mark.parametrize("async_scheduling", [False, True])
DECODE = {"role": "decode", "default_chunk_tokens": 32}


def nixl(build: Any, **options: Any) -> Any:
    """A decode node's scheduler with our NIXL connector."""
    return build(connector="KairosNixlConnector", **options)


def pull(scheduler: Any, name: str, prompt: int = 40, **options: Any) -> Any:
    """Add a request whose KV another engine holds, and step until it is being pulled."""
    request = make_request(name, prompt, transfer=remote_params(prompt), **options)
    scheduler.add_request(request)
    step(scheduler)
    return request


def run_to_the_end(scheduler: Any, limit: int = 400) -> None:
    for _ in range(limit):
        if not scheduler.has_unfinished_requests():
            return
        step(scheduler)
    raise AssertionError("requests left unfinished")


def test_engine_side_ids_do_not_matter(build: Any) -> None:
    """Case 20: internal ids carry a suffix, and n=2 has children: the schedule is read from the request."""
    scheduler = build(kairos=DECODE)
    params = schedule_params(16)
    for name in ("cmpl-1-0-8f2a", "0_cmpl-1-0-77aa", "1_cmpl-1-0-77aa"):
        scheduler.add_request(make_request(name, 40, transfer=params, max_tokens=1))
    assert step(scheduler) == {"cmpl-1-0-8f2a": 16}
    run_to_the_end(scheduler)


def test_nothing_is_left_after_a_thousand_requests(build: Any) -> None:
    """Case 20: per-request state is empty after 1,000 finished or aborted requests."""
    from vllm.v1.request import RequestStatus

    scheduler = build(kairos=DECODE)
    for index in range(1000):
        name = f"R{index}"
        scheduler.add_request(make_request(name, 40, transfer=schedule_params(32) if index % 3 else None, max_tokens=2))
        step(scheduler)
        if index % 4 == 0:
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
    run_to_the_end(scheduler)
    step(scheduler)
    left = left_behind(scheduler)
    assert (left.requests, left.planned, left.prefills, left.step) == ({}, 0, [], None)


def test_abort_while_remote_kv_loads_frees_on_the_signal_only(build: Any) -> None:
    """Case 41: the blocks stay until the transfer's end is signalled, and are freed once."""
    from vllm.v1.request import RequestStatus

    scheduler = nixl(build, kairos=DECODE, blocks=20)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    request = pull(scheduler, "A")
    scheduler.finish_requests("A", RequestStatus.FINISHED_ABORTED)
    step(scheduler)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() < free
    step(scheduler, finished_recving={request.request_id})
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert not scheduler.requests


def test_abort_after_remote_kv_arrived_frees_at_once(build: Any) -> None:
    """Case 41: no later signal comes, and none is needed."""
    from vllm.v1.request import RequestStatus

    scheduler = nixl(build, kairos=DECODE, blocks=20)
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    request = pull(scheduler, "A")
    step(scheduler, finished_recving={request.request_id})
    scheduler.finish_requests("A", RequestStatus.FINISHED_ABORTED)
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free


def test_failed_kv_load_is_recomputed_in_default_chunks(build: Any) -> None:
    """Case 42: invalid blocks for a remote request without a schedule while three decodes run."""
    scheduler = nixl(build, kairos=DECODE)
    decodes = warm_decodes(scheduler, "A", "B", "C", prompt=4)
    request = pull(scheduler, "R", prompt=160)
    blocks = scheduler.kv_cache_manager.get_block_ids("R")[0]
    step(scheduler, invalid_block_ids=set(blocks[2:]), finished_recving={"R"})
    chunks = []
    while request.num_output_tokens == 0:
        tokens = step(scheduler)
        assert all(tokens[decode.request_id] == 1 for decode in decodes)
        chunks.append(tokens["R"])
    assert chunks == [29, 29, 29, 29, 12]  # from token 32 on, under 32 less three decodes


def test_arrived_kv_counts_as_a_decode(build: Any) -> None:
    """A request whose remote KV has arrived gets its token in the same step; the prefill leaves room for it."""
    scheduler = nixl(build, kairos=DECODE)
    pull(scheduler, "R")
    scheduler.add_request(make_request("P", 200, transfer=schedule_params(32)))
    assert step(scheduler, finished_recving={"R"}) == {"P": 32}
    assert step(scheduler) == {"R": 1, "P": 31}


def test_a_prefill_without_room_does_not_stop_a_remote_load_behind_it(build: Any) -> None:
    """The queue scan of vLLM ends at a request that gets no tokens; one that waits for room is not in its way."""
    scheduler = nixl(build, kairos=DECODE)
    scheduler.add_request(make_request("A", 200, transfer=schedule_params(32)))
    step(scheduler)
    scheduler.add_request(make_request("P", 100))
    remote = make_request("R", 40, transfer=remote_params(40))
    scheduler.add_request(remote)
    assert step(scheduler) == {"A": 32}
    assert remote.status.name == "WAITING_FOR_REMOTE_KVS"
    assert [request.request_id for request in scheduler.waiting if request is not remote] == ["P"]


def test_preempted_remote_request_recomputes_locally_under_the_default_chunk(build: Any) -> None:
    """Case 43: no second pull, prompt and generated tokens recomputed in default chunks, finishes."""
    scheduler = nixl(build, kairos=DECODE, blocks=14)
    request = pull(scheduler, "R", prompt=64, max_tokens=40)
    step(scheduler, finished_recving={"R"})
    hog = make_request("H", 64, transfer=schedule_params(64), max_tokens=60)
    scheduler.add_request(hog)
    chunks = []
    for _ in range(200):
        if not scheduler.has_unfinished_requests():
            break
        before = request.num_preemptions
        tokens = step(scheduler)
        if request.num_preemptions and before == request.num_preemptions and tokens.get("R", 0) > 1:
            chunks.append(tokens["R"])
        assert request.kv_transfer_params["do_remote_prefill"] is False
    assert request.num_preemptions > 0 or hog.num_preemptions > 0
    assert all(chunk <= 32 for chunk in chunks)
    assert not scheduler.has_unfinished_requests()
    assert request.num_output_tokens == 40


@MODES
def test_deflected_and_remote_requests_do_not_deadlock(build: Any, async_scheduling: bool) -> None:
    """Case 46: 7 free blocks, a deflected request that needs 4 in front, a finished remote load holding 4 behind."""
    scheduler = nixl(build, kairos=DECODE, blocks=8, async_scheduling=async_scheduling)
    pull(scheduler, "remote", prompt=64, max_tokens=2)
    deflected = make_request("deflected", 64, transfer=schedule_params(32), max_tokens=2)
    scheduler.add_request(deflected)
    scheduler.waiting.remove_request(deflected)
    scheduler.waiting.prepend_request(deflected)
    step(scheduler, finished_recving={"remote"})
    run_to_the_end(scheduler, limit=20)


@MODES
def test_placeholders_never_underflow(build: Any, async_scheduling: bool) -> None:
    """Case 51: three decodes beside a prefill of 10 chunks, preempted at chunk 5; another aborted at chunk 3."""
    from vllm.v1.request import RequestStatus

    scheduler = build(kairos=DECODE, async_scheduling=async_scheduling)
    decodes = warm_decodes(scheduler, "A", "B", "C", prompt=4)
    request = make_request("P", 290, transfer=schedule_params(32), max_tokens=3)
    scheduler.add_request(request)
    for _ in range(5):
        step(scheduler)
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0)
    aborted = make_request("Q", 290, transfer=schedule_params(32))
    scheduler.add_request(aborted)
    for count in range(20):
        tokens = step(scheduler)
        assert all(tokens[decode.request_id] == 1 for decode in decodes)
        if count == 12:
            assert aborted.num_computed_tokens == 28 + 28 + 29
            scheduler.finish_requests("Q", RequestStatus.FINISHED_ABORTED)
    assert request.num_output_tokens == 3


def test_chunk_starts_where_the_external_tokens_end(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 55: 40-token prompt, block 16, the connector reports 35 external tokens: the next chunk starts at 35."""
    scheduler = nixl(build, kairos=DECODE)
    request = make_request("R", 40, transfer=remote_params(40))
    monkeypatch.setattr(scheduler.connector, "get_num_new_matched_tokens", lambda request, computed: (35, False))
    monkeypatch.setattr(scheduler.connector, "update_state_after_alloc", lambda *args: None)
    scheduler.add_request(request)
    output = scheduler.schedule()
    assert output.num_scheduled_tokens == {"R": 5}
    assert output.scheduled_new_reqs[0].num_computed_tokens == 35


def test_priority_preemption_of_a_chunk_scheduled_in_the_same_step(build: Any) -> None:
    """Case 61: its tokens return to the budget, its chunk position rolls back, no assertion fails."""
    scheduler = build(policy="priority", kairos=DECODE, blocks=8)
    low = make_request("low", 64, transfer=schedule_params(16, 32), priority=9, arrival_time=1.0)
    scheduler.add_request(low)
    step(scheduler)
    high = make_request("high", 30, max_tokens=60, priority=0, arrival_time=2.0)
    scheduler.add_request(high)
    positions = []
    for _ in range(200):
        if not scheduler.has_unfinished_requests():
            break
        preemptions = low.num_preemptions
        tokens = step(scheduler)
        if low.num_preemptions > preemptions:
            assert "low" not in tokens
            positions.append(low.kairos_schedule.position(low.num_computed_tokens))
    assert positions
    assert set(positions) == {0}
    assert low.num_output_tokens == 16
    assert high.num_output_tokens == 60


def test_prompt_larger_than_the_kv_cache_is_refused_and_blocks_no_one(build: Any) -> None:
    """Case 66: more blocks than the whole cache has, at the head of the queue."""
    from vllm.v1.engine import FinishReason

    scheduler = build(kairos=DECODE, blocks=10)
    scheduler.add_request(make_request("huge", 400, transfer=schedule_params(64)))
    scheduler.add_request(make_request("small", 40, max_tokens=2))
    output = scheduler.schedule()
    answers = scheduler.update_from_output(output, run_model(scheduler, output))
    ended = [answer for batch in answers.values() for answer in batch.outputs if answer.request_id == "huge"]
    assert [answer.finish_reason for answer in ended] == [FinishReason.ERROR]
    run_to_the_end(scheduler, limit=10)


@MODES
@pytest.mark.parametrize("draft_tokens", [0, 2])
def test_tokens_equal_those_of_the_stock_scheduler(build: Any, async_scheduling: bool, draft_tokens: int) -> None:
    """Cases 51 and 60: without our parameters every step is stock's; with them the same tokens come out."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    options = {"async_scheduling": async_scheduling, "token_budget": 128, "blocks": 60, "draft_tokens": draft_tokens}
    stock = build(scheduler_class=AsyncScheduler if async_scheduling else Scheduler, **options)
    ours, planned = build(**options), build(kairos=DECODE, **options)
    outputs = []
    for scheduler, transfer in ((stock, None), (ours, None), (planned, schedule_params(40, 24))):
        steps = []
        requests = [make_request(f"R{i}", 90 + 7 * i, max_tokens=12, transfer=transfer if i % 2 else None) for i in range(6)]
        for request in requests:
            scheduler.add_request(request)
            steps.append(step(scheduler))
        while scheduler.has_unfinished_requests():
            steps.append(step(scheduler))
        outputs.append((steps, [list(request.output_token_ids) for request in requests]))
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == outputs[2][1]


def test_grammar_requests_are_scheduled_by_vllm_itself(build: Any) -> None:
    """Case 63: a deflected request with a grammar: the step that samples says so, the chunks before do not."""
    scheduler = build()
    request = make_request("J", 96, transfer=schedule_params(32))
    grammar = SimpleNamespace(accept_tokens=lambda *_: True, is_terminated=lambda: False)
    request.structured_output_request = SimpleNamespace(grammar=grammar, reasoning_ended=True)
    scheduler.add_request(request)
    flags = []
    for _ in range(3):
        output = scheduler.schedule()
        flags.append(output.has_structured_output_requests)
        scheduler.update_from_output(output, run_model(scheduler, output))
    assert flags == [False, False, True]
