"""Random mixes on the real scheduler: decodes are never starved, prompts end exactly, nothing hangs or stays."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.builder import left_behind, make_request, remote_params, run_model, schedule_params
from vllm_kairos.engine.deflection import is_deflected

FLOOR_TOKENS = 16
SHARED_PREFIX = list(range(1, 65))


@dataclass(frozen=True)
class Arrival:
    """One request of a mix, and when what happens to it."""

    at_step: int
    prompt: int
    output: int
    schedule: tuple[int, ...] | None
    remote: bool
    shares_prefix: bool
    priority: int
    abort_after: int | None


arrivals = st.builds(
    Arrival,
    at_step=st.integers(0, 12),
    prompt=st.integers(1, 150),
    output=st.integers(1, 12),
    schedule=st.none() | st.lists(st.integers(1, 80), min_size=1, max_size=4).map(tuple),
    remote=st.booleans(),
    shares_prefix=st.booleans(),
    priority=st.integers(0, 2),
    abort_after=st.none() | st.integers(0, 10),
)


@dataclass(frozen=True)
class Node:
    """How the scheduler under test is set up."""

    async_scheduling: bool
    policy: str
    token_budget: int
    blocks: int
    default_chunk: int
    depth: int
    draft_tokens: int


nodes = st.builds(
    Node,
    async_scheduling=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    token_budget=st.sampled_from([16, 64, 512]),
    blocks=st.integers(14, 60),
    default_chunk=st.sampled_from([8, 32, 100]),
    depth=st.integers(1, 2),
    draft_tokens=st.sampled_from([0, 0, 2]),
)


class Mix:
    """Plays arrivals, aborts and transfers against one scheduler and checks every step."""

    def __init__(self, scheduler: Any, node: Node, mix: list[Arrival]) -> None:
        self.scheduler, self.node, self.mix = scheduler, node, mix
        self.requests: dict[str, Any] = {}
        self.in_flight: deque[Any] = deque()
        self.aborted: set[str] = set()
        self.pulling: set[str] = set()
        self.missed: dict[str, int] = {}

    def run(self) -> None:
        last_arrival = max(arrival.at_step for arrival in self.mix)
        for index in range(4000):
            self._arrive_and_abort(index)
            self._step()
            if index > last_arrival and not self.scheduler.has_requests() and not self.in_flight:
                return
        raise AssertionError(f"still unfinished: {[r for r in self.requests if r in self.scheduler.requests]}")

    def _arrive_and_abort(self, index: int) -> None:
        from vllm.v1.request import RequestStatus

        for number, arrival in enumerate(self.mix):
            name = f"R{number}"
            if arrival.at_step == index:
                self._add(name, arrival, index)
            if arrival.abort_after is not None and arrival.at_step + arrival.abort_after == index:
                self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
                self.aborted.add(name)

    def _add(self, name: str, arrival: Arrival, index: int) -> None:
        prompt: Any = arrival.prompt
        if arrival.shares_prefix:
            prompt = (SHARED_PREFIX + [1000 + len(self.requests)] * arrival.prompt)[: max(arrival.prompt, 1)]
        transfer = schedule_params(*arrival.schedule) if arrival.schedule else None
        if transfer is None and arrival.remote:
            transfer = remote_params(arrival.prompt)
        request = make_request(
            name, prompt, max_tokens=arrival.output, transfer=transfer, priority=arrival.priority, arrival_time=float(index)
        )
        self.requests[name] = request
        self.scheduler.add_request(request)

    def _step(self) -> None:
        decodes, entries = self._decodes_due(), self._entries()
        output = self.scheduler.schedule()
        self._check(output, decodes)
        self._check_chunks(output, entries)
        self.in_flight.append((output, run_model(self.scheduler, output)))
        loading = [name for name, r in self.requests.items() if r.status.name == "WAITING_FOR_REMOTE_KVS"]
        keep = self.node.depth - 1 if output.num_scheduled_tokens else 0
        while len(self.in_flight) > keep:
            self._update(loading)

    def _update(self, loading: list[str]) -> None:
        from vllm.v1.outputs import KVConnectorOutput

        finished = {name for name in loading if name in self.pulling}
        self.pulling = set(loading) - finished
        ended = {name for name in self.aborted if name in self.scheduler.requests and name not in loading}
        output, answer = self.in_flight.popleft()
        answer.kv_connector_output = KVConnectorOutput(finished_recving=finished | self._delayed(ended))
        self.scheduler.update_from_output(output, answer)

    def _delayed(self, ended: set[str]) -> set[str]:
        """Aborted while their KV was loading: the signal comes after all."""
        return {name for name in ended if self.scheduler.requests[name].is_finished()}

    def _decodes_due(self) -> list[Any]:
        """Running requests past their prompt that vLLM will want to give a token."""
        return [r for r in self.scheduler.running if not r.is_prefill_chunk and wants_token(r)]

    def _check(self, output: Any, decodes: list[Any]) -> None:
        tokens = output.num_scheduled_tokens
        assert sum(tokens.values()) <= self.node.token_budget
        starved = [r.request_id for r in decodes if r.request_id not in tokens and r.status.name == "RUNNING"]
        if starved and not output.preempted_req_ids:
            assert len(decodes) * (1 + self.node.draft_tokens) > self.node.token_budget or self._lacks_blocks(), (
                f"{starved} got nothing in {tokens}"
            )

    def _entries(self) -> dict[str, tuple[int, int]]:
        """Chi and tokens left of every deflected prefill under way."""
        running = [r for r in self.scheduler.running if r.is_prefill_chunk and is_deflected(r)]
        return {
            r.request_id: (r.kairos_schedule.chi(r.num_computed_tokens), r.num_tokens - r.num_computed_tokens) for r in running
        }

    def _check_chunks(self, output: Any, entries: dict[str, tuple[int, int]]) -> None:
        """The step's total stays within chi, but for decodes and the floor; no chunk runs past the prompt."""
        total = sum(output.num_scheduled_tokens.values())
        for name, (chi, left) in entries.items():
            tokens = output.num_scheduled_tokens.get(name, 0)
            assert tokens <= left
            assert tokens <= FLOOR_TOKENS or total <= chi

    def _lacks_blocks(self) -> bool:
        return bool(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 0)


def wants_token(request: Any) -> bool:
    in_flight = request.num_output_placeholders
    wanted = request.num_tokens + in_flight - request.num_computed_tokens
    sure_to_end = (
        in_flight > 0 and request.num_computed_tokens + 2 - in_flight >= request.num_prompt_tokens + request.max_tokens
    )
    return bool(wanted > 0 and not sure_to_end)


def complete(mix: Mix, name: str, request: Any) -> bool:
    return bool(request.num_output_tokens == mix.mix[int(name[1:])].output)


def check_end(mix: Mix) -> None:
    wrong = [name for name, request in mix.requests.items() if name not in mix.aborted and not complete(mix, name, request)]
    assert not wrong
    mix.requests.clear()
    left = left_behind(mix.scheduler)
    assert (left.requests, left.prefills, left.step, left.planned) == ({}, [], None, 0)
    pool = mix.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1


def scheduler_of(model: str, node: Node) -> Any:
    from tests.engine.builder import build_scheduler

    return build_scheduler(
        model,
        async_scheduling=node.async_scheduling,
        policy=node.policy,
        token_budget=node.token_budget,
        blocks=node.blocks,
        prefix_caching=True,
        max_sequences=8,
        draft_tokens=node.draft_tokens,
        connector="KairosNixlConnector",
        kairos={"role": "decode", "default_chunk_tokens": node.default_chunk},
    )


@given(node=nodes, mix=st.lists(arrivals, min_size=1, max_size=8))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_random_mixes(model: str, node: Node, mix: list[Arrival]) -> None:
    """Every running decode gets its token in every step, prompts end exactly, case 46's deadlock never occurs."""
    scheduler = scheduler_of(model, node)
    try:
        played = Mix(scheduler, node, mix)
        played.run()
        check_end(played)
    finally:
        scheduler.shutdown()


@pytest.mark.parametrize("blocks", [8, 9, 12])
def test_deadlock_shape_of_case_46(model: str, blocks: int) -> None:
    """Case 46 as a mix: a remote load and a deflected prefill that do not fit together."""
    mix = [Arrival(0, 64, 2, None, True, False, 0, None), Arrival(1, 64, 2, (32,), False, False, 0, None)]
    test_random_mixes.hypothesis.inner_test(model, Node(True, "fcfs", 64, blocks, 32, 1, 0), mix)


def test_a_chunk_smaller_than_a_padded_token_does_not_stall(model: str) -> None:
    """vLLM pads the only token that a prefix hit leaves by the drafts; chi 1 would never fit it."""
    short = [Arrival(0, 1, 1, None, False, False, 0, None)] * 4
    mix = [*short, Arrival(0, 16, 1, None, False, True, 0, None), Arrival(0, 17, 1, (1,), False, True, 0, None)]
    test_random_mixes.hypothesis.inner_test(model, Node(False, "fcfs", 16, 14, 8, 1, 2), mix)


def test_a_prompt_of_two_tokens_stays_within_anothers_chi(model: str) -> None:
    """It is not padded by the drafts, and may be split."""
    short = [Arrival(0, 1, 1, None, False, False, 0, None), Arrival(0, 31, 1, None, False, False, 0, None)]
    mix = [*short, Arrival(0, 31, 3, None, False, False, 0, None), Arrival(3, 1, 1, None, False, False, 0, None)]
    mix += [Arrival(5, 2, 1, None, False, False, 0, None), Arrival(4, 73, 1, (32, 23), False, False, 0, None)]
    test_random_mixes.hypothesis.inner_test(model, Node(False, "fcfs", 64, 14, 32, 2, 2), mix)
