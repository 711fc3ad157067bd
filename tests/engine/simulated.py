"""One mix of requests, played step by step on the real scheduler and on the simulator's engine."""

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests.engine.builder import make_request, remote_params, run_model, schedule_params
from vllm_kairos.core.governor import Governor, GovernorSettings
from vllm_kairos.core.linear import DecodeCost, LinearStepModel, PrefillCost
from vllm_kairos.core.node import Role
from vllm_kairos.core.schedule_state import ScheduleState
from vllm_kairos.engine.governor import StepGovernor
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.governed import Governed
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.sim.leap import Leap
from vllm_kairos.workload.request import TraceRequest

Steps = dict[int, dict[str, int]]
"""Tokens that each request got, by step; steps without any are left out."""

_NOTHING = PrefillCost(fixed_s=0.0, per_token_s=0.0, per_done_token_s=0.0, per_attention_work_s=0.0)
ONE_SECOND = LinearStepModel(
    prefill=PrefillCost(fixed_s=1.0, per_token_s=0.0, per_done_token_s=0.0, per_attention_work_s=0.0),
    decode=DecodeCost(fixed_s=1.0, per_decode_s=0.0, per_kv_token_s=0.0),
    extra=_NOTHING,
)
"""Every step takes a second, so that a step's index is its time."""
PRICED = LinearStepModel(
    prefill=PrefillCost(fixed_s=0.4, per_token_s=0.02, per_done_token_s=0.0, per_attention_work_s=1e-4),
    decode=DecodeCost(fixed_s=0.6, per_decode_s=0.02, per_kv_token_s=2e-4),
    extra=PrefillCost(fixed_s=0.1, per_token_s=0.01, per_done_token_s=0.0, per_attention_work_s=1e-4),
)
"""What a governor takes steps for."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request of a mix.

    `pull_steps`: its prompt's KV is pulled, and here that many steps after it was asked for. `held_steps`: it is
    a prefill leg, whose KV is held that many steps until it was pulled.
    """

    at_step: int
    prompt: int
    output: int = 1
    schedule: tuple[int, ...] | None = None
    pull_steps: int | None = None
    held_steps: int | None = None
    ids: tuple[int, ...] | None = None  # the prompt's token ids, where prefixes matter
    hashes: tuple[int, ...] = ()  # of its whole blocks


@dataclass(frozen=True, kw_only=True)
class Node:
    """The engine's sizes; `kv_blocks` are those that requests can use."""

    token_budget: int
    kv_blocks: int
    max_sequences: int = 8
    default_chunk: int | None = 32
    max_wait_steps: int = 3
    floor_chunk: int = 4
    prefix_caching: bool = False
    async_scheduling: bool = False
    governor: GovernorSettings | None = None

    def spec(self) -> EngineSpec:
        return EngineSpec(
            name="d0",
            role=Role.DECODE,
            model=ONE_SECOND,
            kv_blocks=self.kv_blocks,
            token_budget_tokens=self.token_budget,
            max_running_requests=self.max_sequences,
            default_chunk_tokens=self.default_chunk,
            max_wait_steps=self.max_wait_steps,
            floor_chunk_tokens=self.floor_chunk,
            prefix_caching=self.prefix_caching,
            async_scheduling=self.async_scheduling,
            governor=self.governor,
        )

    def options(self) -> dict[str, Any]:
        """What `build_scheduler` takes; one block of vLLM's pool is its null block."""
        kairos: dict[str, Any] = {"max_wait_steps": self.max_wait_steps, "floor_chunk_tokens": self.floor_chunk}
        if self.governor is not None:
            kairos["governor"] = {"profile": "a100-llama3-8b", "mode": str(self.governor.mode)}
        if self.default_chunk is not None:
            kairos["default_chunk_tokens"] = self.default_chunk
        return {
            "token_budget": self.token_budget,
            "blocks": self.kv_blocks + 1,
            "max_sequences": self.max_sequences,
            "prefix_caching": self.prefix_caching,
            "async_scheduling": self.async_scheduling,
            "connector": "KairosNixlConnector",
            "kairos": {"role": "decode" if self.default_chunk is not None else "both", **kairos},
        }


def govern_anew(scheduler: Any, node: Node, clock: Callable[[], float]) -> None:
    """Give the scheduler a governor that knows nothing yet, where `node` has one."""
    if node.governor is not None:
        governor = Governor(PRICED, node.governor)
        step_governor = StepGovernor(
            scheduler, governor, objective=node.governor.objective, tightest_slo_s=0.0, clock=clock, wall_clock=clock
        )
        scheduler._kairos_governor = scheduler._kairos_planner._governor = step_governor


class _RealRun:
    """Plays a mix on the real scheduler, one synchronous step at a time."""

    def __init__(self, scheduler: Any, mix: Sequence[Arrival], node: Node) -> None:
        self._scheduler, self._mix = scheduler, mix
        self._now_s = 0.0
        govern_anew(scheduler, node, lambda: self._now_s)
        self._due: dict[int, set[str]] = defaultdict(set)
        self._pulled: set[str] = set()
        self._sent: dict[int, set[str]] = defaultdict(set)

    def arrive(self, index: int) -> None:
        for number, arrival in enumerate(self._mix):
            if arrival.at_step == index:
                self._scheduler.add_request(arriving_request(f"R{number}", arrival, index))

    def step(self, index: int) -> dict[str, int]:
        self._now_s = float(index)
        output = self._scheduler.schedule()
        if output.preempted_req_ids and not output.num_scheduled_tokens:
            # A step without tokens ends at once; the simulator's takes no time at all.
            self._scheduler.update_from_output(output, run_model(self._scheduler, output))
            output = self._scheduler.schedule()
        self._note_pulls(index)
        pulled, sent = self._due.pop(index, set()), self._sent.pop(index, set())
        answer = run_model(self._scheduler, output, finished_recving=pulled, finished_sending=sent)
        self._now_s += 1 if output.num_scheduled_tokens else 0
        self._scheduler.update_from_output(output, answer)
        for name in output.num_scheduled_tokens:
            held_steps = self._mix[int(name[1:])].held_steps
            if held_steps is not None and name in self._scheduler.requests and self._scheduler.requests[name].is_finished():
                self._sent[index + held_steps].add(name)
        return dict(output.num_scheduled_tokens)

    def _note_pulls(self, index: int) -> None:
        waiting = {name for name, r in self._scheduler.requests.items() if r.status.name == "WAITING_FOR_REMOTE_KVS"}
        for name in waiting - self._pulled:
            self._due[index + (self._mix[int(name[1:])].pull_steps or 1) - 1].add(name)
        self._pulled |= waiting


def real_steps(scheduler: Any, mix: Sequence[Arrival], node: Node, most: int = 3000) -> Steps:
    """Play `mix` on the real scheduler."""
    steps: Steps = {}
    run = _RealRun(scheduler, mix, node)
    last = max(arrival.at_step for arrival in mix)
    for index in range(most):
        run.arrive(index)
        if tokens := run.step(index):
            steps[index] = tokens
        if index > last and not scheduler.requests:
            return steps
    raise AssertionError(f"still unfinished: {list(scheduler.requests)}")


def arriving_request(name: str, arrival: Arrival, index: int) -> Any:
    """What the real scheduler gets."""
    transfer = schedule_params(*arrival.schedule) if arrival.schedule else None
    if arrival.pull_steps is not None:
        transfer = remote_params(arrival.prompt)
    if arrival.held_steps is not None:
        transfer = {"do_remote_decode": True, "do_remote_prefill": False}
    prompt = list(arrival.ids) if arrival.ids else arrival.prompt
    return make_request(name, prompt, max_tokens=arrival.output, transfer=transfer, arrival_time=float(index))


class SteppedEngine(Engine):
    """Notes what every step gives to whom; `leaps` False takes each step by itself."""

    leaps = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: Steps = {}
        if self.spec.governor is not None:
            self.governed = Governed(replace(self.spec, model=PRICED), self.spec.governor)

    def _may_leap(self) -> bool:
        return self.leaps and super()._may_leap()

    def _finish_step(self, leap: Leap) -> None:
        tokens = {job.request.request_id: 1 for job in self.decodes}
        tokens.update({job.request.request_id: size for job, size in self._chunks})
        self.steps.update({round(leap.end_s(step)): dict(tokens) for step in range(leap.steps)})
        super()._finish_step(leap)


class _Pulls:
    """Answers the engine's wish for KV after as many steps as the mix says."""

    def __init__(self, kernel: Kernel, mix: Sequence[Arrival]) -> None:
        self._kernel, self._mix = kernel, mix
        self.finished_requests = 0

    def kv_wanted(self, engine: Engine, job: Job) -> None:
        steps = self._mix[int(job.request.request_id[1:])].pull_steps or 1
        self._kernel.after(float(steps), lambda: engine.kv_arrived(job))

    def prefilled(self, engine: Engine, job: Job) -> None:
        steps = self._mix[int(job.request.request_id[1:])].held_steps
        assert steps is not None
        self.finished_requests += 1
        self._kernel.after(float(steps), lambda: engine.release(job))

    def first_token(self, engine: Engine, job: Job) -> None:
        pass

    def finished(self, engine: Engine, job: Job) -> None:
        self.finished_requests += 1

    def step_ended(self, engine: Engine, *, deflection_ended: bool) -> None:
        pass


def simulated_steps(node: Node, mix: Sequence[Arrival], *, leaps: bool = True) -> Steps:
    """Play `mix` on the simulator's engine."""
    kernel = Kernel()
    pulls = _Pulls(kernel, mix)
    engine = SteppedEngine(node.spec(), kernel, pulls, random.Random(0))
    engine.leaps = leaps
    for number, arrival in enumerate(mix):
        kernel.at(float(arrival.at_step), partial(engine.submit, _job(f"R{number}", arrival)))
    kernel.run(until_s=3000)
    assert pulls.finished_requests == len(mix), f"still unfinished after {kernel.now_s:g} s"
    assert engine.pool.in_use_blocks == 0
    return engine.steps


def _job(name: str, arrival: Arrival) -> Job:
    request = TraceRequest(
        request_id=name,
        arrival_s=float(arrival.at_step),
        prompt_tokens=arrival.prompt,
        output_tokens=arrival.output,
        block_hashes=arrival.hashes,
        block_tokens=16 if arrival.hashes else 0,
    )
    schedule = ScheduleState(arrival.schedule, planned=True) if arrival.schedule else None
    return Job(
        request=request, schedule=schedule, pulls_kv=arrival.pull_steps is not None, prefill_only=arrival.held_steps is not None
    )


def first_difference(real: Steps, simulated: Steps) -> str:
    """The first step that the two composed differently; empty when there is none."""
    for index in sorted(real.keys() | simulated.keys()):
        if real.get(index) != simulated.get(index):
            return f"step {index}: vLLM {real.get(index)}, simulator {simulated.get(index)}"
    return ""
