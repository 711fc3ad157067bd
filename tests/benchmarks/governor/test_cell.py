"""One cell against a stand-in for a server that writes its steps down, as ours do."""

import json
import time
from contextlib import asynccontextmanager
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.governor import cell
from benchmarks.governor.cell import Served, row_of, run_cell, warm
from benchmarks.governor.contenders import of_name
from benchmarks.governor.plan import Place
from benchmarks.serving.sweep import CellKey
from tests.benchmarks.governor.records import case
from tests.benchmarks.governor.test_engine_view import HEADER, METRICS
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.steps.step_file import StepLine, encode_line

LATE = StepLine(step=1, at=0.0, B=2, K=10, took=0.3, run=0.3, cause="unplanned", gaps=[("unplanned", 1, 0.3)])


class StubServer:
    """Answers completions at once, and writes one late gap for each."""

    def __init__(self, steps):
        self.steps, self.prompts, self.ended = steps, [], 0

    async def complete(self, request):
        body = await request.json()
        self.prompts.append(len(body["prompt"]))
        header = msgspec.structs.replace(HEADER, started_at_s=time.time())
        with self.steps.open("ab") as file:
            file.write(encode_line(header) + encode_line(LATE))
        self.ended += 1
        answer = web.StreamResponse()
        await answer.prepare(request)
        for at in range(body["max_tokens"]):
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": at + 1}
            event = json.dumps({"choices": [{"text": "x"}], "usage": usage})
            await answer.write(f"data: {event}\n\n".encode())
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def metrics(self, _request):
        counts = METRICS.replace(" 2.0", " 0.0").replace(" 6.0", f" {self.ended}").replace(" 8.0", f" {self.ended}")
        return web.Response(text=f"vllm:num_requests_running 0\n{counts.replace('0.025', '0.25')}")


@asynccontextmanager
async def _served(tmp_path, contender):
    stub = StubServer(tmp_path / "steps.jsonl.d0")
    app = web.Application()
    app.router.add_post("/v1/completions", stub.complete)
    app.router.add_get("/metrics", stub.metrics)
    server = TestServer(app)
    await server.start_server()
    process = ProcessPlan(name="d0", argv=(), environment={}, port=server.port or 0)
    plan = ClusterPlan(prefill=(), decode=(process,), model="none", served_model_name="m", router_port=0, metrics_port=0)
    spec = ClusterSpec(prefill=0, router=False, aggregated=True)
    cluster = SimpleNamespace(plan=plan, pid=lambda name: 1)
    try:
        yield Served(cluster=cluster, spec=spec, contender=of_name(contender), step_files=(stub.steps,)), stub
    finally:
        await server.close()


def _place(contender):
    return Place(case=case(duration_s=0.5), key=CellKey(repeat=0, rate_rps=8.0, contender=contender))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr(cell, "_SETTLE_S", 0.0)


async def test_a_cell_has_the_clients_figures_and_the_engines(tmp_path):
    place = _place("governor")
    async with _served(tmp_path, "governor") as (served, stub):
        await warm(served, place)
        warmed = len(stub.prompts)
        record = await run_cell(served, place)
    row = row_of(record, place.case)
    assert (warmed, len(stub.prompts) - warmed) == (4, 4)
    assert (row["case"], row["status"], row["requests"], row["failed"]) == ("small", "ok", 4, 0)
    assert (row["engine_gaps"], row["engine_violations"], row["late_share"]) == (4, 4, 1.0)
    assert row["violations_unplanned"] == 4
    assert record["engine"]["tpot_attainment"] == 1.0
    assert record["engine"]["windows"] == [{"from_s": 0.0, "gaps": 4, "violations": 4}]
    assert row["good_rps"] == 8.0


async def test_a_wrong_profile_is_not_made_up_for_before_its_cell(tmp_path):
    async with _served(tmp_path, "governor-x1.4") as (served, stub):
        await warm(served, _place("governor-x1.4"))
    assert stub.prompts == [16, 16, 16]
