"""With async scheduling a step is composed as the one before it begins: who is in which step, computed by hand."""

import random
from functools import partial

import pytest

from tests.sim.clusters import IDEAL_ROUTER, cluster, prefill_cost, requests, run, steps_of
from vllm_kairos.core.node import Role
from vllm_kairos.sim.engine import Engine
from vllm_kairos.sim.engine_spec import EngineSpec
from vllm_kairos.sim.job import Job
from vllm_kairos.sim.kernel import Kernel
from vllm_kairos.workload.request import TraceRequest

SECOND = steps_of(prefill_cost(fixed_s=1.0), decode_s=1.0)
"""Every step takes a second; with decodes beside it a prefill step takes two."""


class Alone:
    """One engine that is told everything by hand; notes when tokens come."""

    def __init__(self, *, async_scheduling: bool, kv_blocks: int = 1000, max_running_requests: int = 256) -> None:
        self.kernel = Kernel()
        spec = EngineSpec(
            name="n",
            role=Role.BOTH,
            model=SECOND,
            kv_blocks=kv_blocks,
            max_running_requests=max_running_requests,
            async_scheduling=async_scheduling,
        )
        self.engine = Engine(spec, self.kernel, self, random.Random(0))
        self.firsts: dict[str, float] = {}
        self.ends: dict[str, float] = {}
        self.wanted: dict[str, float] = {}

    def submit(self, at_s: float, name: str, *, output: int = 1, pulls_kv: bool = False) -> None:
        request = TraceRequest(request_id=name, arrival_s=at_s, prompt_tokens=32, output_tokens=output)
        self.kernel.at(at_s, partial(self.engine.submit, Job(request=request, pulls_kv=pulls_kv)))

    def run(self) -> None:
        self.kernel.run()
        assert not self.engine.busy
        assert self.engine.pool.in_use_blocks == 0

    def first_token(self, engine: Engine, job: Job) -> None:
        self.firsts[job.request.request_id] = self.kernel.now_s

    def finished(self, engine: Engine, job: Job) -> None:
        self.ends[job.request.request_id] = self.kernel.now_s

    def kv_wanted(self, engine: Engine, job: Job) -> None:
        self.wanted[job.request.request_id] = self.kernel.now_s
        self.kernel.after(0.25, lambda: engine.kv_arrived(job))

    def prefilled(self, engine: Engine, job: Job) -> None: ...

    def step_ended(self, engine: Engine, *, deflection_ended: bool) -> None: ...


@pytest.mark.parametrize(("async_scheduling", "first_s"), [(False, 5.0), (True, 6.0)])
def test_a_prompt_enters_the_step_after_the_one_that_is_composed_already(async_scheduling: bool, first_s: float) -> None:
    """It comes at 2.5, in the third step; its own takes 2 s. Decodes at work do not notice, but for that step."""
    alone = Alone(async_scheduling=async_scheduling)
    alone.submit(0.0, "decode", output=10)
    alone.submit(2.5, "late")
    alone.run()
    assert alone.firsts == {"decode": pytest.approx(1.0), "late": pytest.approx(first_s)}
    assert alone.ends["decode"] == pytest.approx(11.0)


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_idle_engine_begins_at_once(async_scheduling: bool) -> None:
    alone = Alone(async_scheduling=async_scheduling)
    alone.submit(0.5, "first")
    alone.submit(1.0, "second")  # during the only step there is: nothing is composed for 1.5
    alone.submit(7.0, "third")
    alone.run()
    assert alone.firsts == {"first": 1.5, "second": 2.5, "third": 8.0}


@pytest.mark.parametrize(("async_scheduling", "wanted_s", "first_s"), [(False, 3.0, 5.0), (True, 4.0, 8.0)])
def test_pulled_kv_is_known_with_the_output_of_the_step_that_looks_for_it(
    async_scheduling: bool, wanted_s: float, first_s: float
) -> None:
    """A leg comes at 2.5, in the third step.

    vLLM starts the load as it hands over the fifth step, at 3; hands over the sixth at 4, and finds the KV; knows it
    with that step's output at 6, and composes the eighth, whose token comes at 8. Here the load begins with the fifth.
    """
    alone = Alone(async_scheduling=async_scheduling)
    alone.submit(0.0, "decode", output=20)
    alone.submit(2.5, "pulled", output=3, pulls_kv=True)
    alone.run()
    assert alone.wanted["pulled"] == pytest.approx(wanted_s)
    assert alone.firsts["pulled"] == pytest.approx(first_s)
    assert alone.ends["pulled"] == pytest.approx(first_s + 2)
    assert alone.ends["decode"] == pytest.approx(20.0)


@pytest.mark.parametrize(("async_scheduling", "first_s"), [(False, 5.0), (True, 6.0)])
def test_what_a_step_frees_counts_one_step_later(async_scheduling: bool, first_s: float) -> None:
    """Two may run: the third begins when the short one has ended, at 3, and its step beside a decode takes 2 s."""
    alone = Alone(async_scheduling=async_scheduling, max_running_requests=2)
    alone.submit(0.0, "long", output=9)
    alone.submit(0.0, "short", output=3)
    alone.submit(0.5, "third")
    alone.run()
    assert alone.ends["short"] == pytest.approx(3.0)
    assert alone.firsts["third"] == pytest.approx(first_s)


def test_a_cluster_under_way_pays_three_decode_steps_for_pulled_kv() -> None:
    """Both prompts take their second on an idle prefill node; only the second one finds the decode node at work."""
    load = requests((0.0, 100, 100), (9.5, 100, 2))
    ttfts = [
        [record.ttft_s for record in run(spec, load).requests]
        for spec in (
            cluster(1, 1, async_scheduling=mode, model=SECOND, kv_bytes_per_token=0, router=IDEAL_ROUTER)
            for mode in (False, True)
        )
    ]
    assert ttfts[0][0] == ttfts[1][0] == pytest.approx(2.0, abs=1e-3)
    assert ttfts[1][1] - ttfts[0][1] == pytest.approx(3.0)
