"""Prompts in the waiting queues: those that vLLM passes over, those whose prefix is cached, and very many."""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from tests.engine.builder import make_request, step, warm_decodes
from tests.engine.governed import Governed, options

BOUNDED = pytest.mark.parametrize(
    "kairos", [{"default_chunk_tokens": 512}, options(tbt_slo_s=0.05), options(tpot_slo_s=0.05)], ids=["chunk", "tbt", "tpot"]
)
MOST_STEPS = 30


def compiles(scheduler: Any, request: Any) -> None:
    """Its grammar is not there yet."""
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = SimpleNamespace(grammar=None, reasoner=None, reasoning_ended=False)


def needs_another_adapter(scheduler: Any, request: Any) -> None:
    """As many adapters as there may be are in use."""
    scheduler.lora_config = SimpleNamespace(max_loras=1)
    scheduler.requests["D"].lora_request = SimpleNamespace(lora_int_id=1, lora_name="x", lora_path="x")
    request.lora_request = SimpleNamespace(lora_int_id=2, lora_name="y", lora_path="y")


@BOUNDED
@pytest.mark.parametrize("held_up", [compiles, needs_another_adapter])
def test_others_pass_a_prompt_that_vllm_passes_over(build: Any, kairos: dict[str, Any], held_up: Any) -> None:
    scheduler = build(kairos=kairos)
    warm_decodes(scheduler, "D", max_tokens=5000)
    first = make_request("A", 3000)
    held_up(scheduler, first)
    scheduler.add_request(first)
    names = [f"B{index}" for index in range(5)]
    for name in names:
        scheduler.add_request(make_request(name, 100, max_tokens=2))
    for _ in range(MOST_STEPS):
        step(scheduler)
    assert not first.num_computed_tokens
    assert not set(names) & scheduler.requests.keys()


@BOUNDED
def test_what_the_prefix_cache_holds_takes_no_room(build: Any, kairos: dict[str, Any]) -> None:
    """Twenty prompts of 4,000 cached tokens and 30 of their own."""
    scheduler = build(kairos=kairos, prefix_caching=True, max_sequences=64)
    shared = [position % 50_000 for position in range(7, 4007)]
    scheduler.add_request(make_request("W", [*shared, 1], max_tokens=1))
    warm_decodes(scheduler, "D", max_tokens=5000)
    while "W" in scheduler.requests:
        step(scheduler)
    waiting = [make_request(f"B{index}", [*shared, *[100 + index] * 30], max_tokens=8) for index in range(20)]
    for request in waiting:
        scheduler.add_request(request)
    for _ in range(2):
        step(scheduler)
    assert all(request.num_output_tokens for request in waiting)


def test_all_that_wait_count_against_those_that_decode(build: Any) -> None:
    """More than a step looks at; each is late, and its step would carry far more than one in time."""
    node = Governed(build(kairos=options(tbt_slo_s=0.0121, ttft_slo_s=1.0), max_sequences=400, blocks=60_000))
    node.governor._wall_clock = lambda: node.now_s
    for index in range(300):
        node.scheduler.add_request(make_request(f"D{index}", 2, max_tokens=1000))
    for _ in range(8):
        node.step()
    asked = node.governor._governor.bound
    told: list[int] = []

    def bound(now_s: float, decodes: int, kv_tokens: int, head: str, queue: Any) -> Any:
        told.append(queue.prompts)
        return asked(now_s, decodes, kv_tokens, head, queue)

    node.governor._governor.bound = bound
    for index in range(600):
        node.scheduler.add_request(make_request(f"P{index}", 100, max_tokens=2, arrival_time=node.now_s - 10.0))
    node.step()
    assert told[0] == 600
