"""One cell from the start of its router to the verdict on every answer, with stand-ins for router and servers."""

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.serving.contenders import CONTENDERS, Programs
from benchmarks.serving.failing.cell import Bench, run_cell
from benchmarks.serving.failing.expected import Model
from benchmarks.serving.failing.scenarios import SCENARIOS, Scenario
from benchmarks.serving.failing.stage import Stage
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ClusterError

WORDS = ("alpha", "beta", "gamma", "delta", "epsilon")


@asynccontextmanager
async def cluster(faults):
    """A prefill and a decode server in one, which take faults and restarts."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text='vllm:num_requests_running 0\nvllm:generation_tokens_total{engine="0"} 3.0\n')

    async def fault(request: web.Request) -> web.Response:
        asked = await request.json()
        if asked["kind"] == "none":
            return web.json_response({"error": "no such fault"}, status=400)
        faults.append(asked)
        return web.json_response({"accepted": True})

    async def complete(_request: web.Request) -> web.Response:
        return web.json_response({"kv_transfer_params": {}})

    async def restart(name: str) -> None:
        faults.append(f"restart {name}")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/health", metrics)
    app.router.add_post("/kairos/emulation/faults", fault)
    app.router.add_post("/v1/completions", complete)
    server = TestServer(app)
    await server.start_server()
    prefill, decode = (ProcessPlan(name=name, argv=(), environment={}, port=server.port or 0) for name in ("p0", "d0"))
    plan = ClusterPlan(
        prefill=(prefill,), decode=(decode,), model="none", served_model_name="stub", router_port=0, metrics_port=0
    )
    try:
        yield SimpleNamespace(plan=plan, pid=lambda name: 1, restart=restart)
    finally:
        await server.close()


@pytest.fixture
def bench(tmp_path, monkeypatch):
    vocabulary = {"<unk>": 0} | {"\u0120" + word: index for index, word in enumerate(WORDS, 1)}
    Tokenizer(WordLevel(vocabulary, unk_token="<unk>")).save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setenv("KAIROS_STUB_MODEL", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    programs = Programs(toy_proxy=Path(__file__).with_name("stub_front.py"))
    return Bench(spec=ClusterSpec(), programs=programs, model=Model(tmp_path), rate_rps=8.0, out=tmp_path)


def short(scenario: Scenario) -> Scenario:
    if scenario.back_s is None:
        return replace(scenario, fault_s=0.3, duration_s=1.0)
    return replace(scenario, fault_s=0.3, back_s=0.6, duration_s=60.0)


async def test_every_answer_of_a_cell_is_checked(bench):
    faults: list[object] = []
    async with cluster(faults) as servers:
        record = await run_cell(bench, servers, CONTENDERS["toy-proxy"], short(SCENARIOS["fail-transfer"]), 0)
    assert record["verdicts"]["right"] == record["requests"] == 8
    assert faults == [{"kind": "fail_transfers", "count": 2}]
    assert record["moments_s"]["fault"] >= 0.3
    assert len(record["each"]) == 8


async def test_requests_go_to_the_new_router_and_those_under_way_stay_with_the_old(bench):
    async with cluster([]) as servers:
        record = await run_cell(bench, servers, CONTENDERS["toy-proxy"], short(SCENARIOS["router-drain"]), 0)
    assert record["moments_s"]["healthy"] > record["moments_s"]["fault"]
    assert record["verdicts"]["lost"] == record["verdicts"]["wrong"] == 0
    assert record["verdicts"]["right"] + record["verdicts"]["broken"] == record["requests"]
    assert len(list((bench.out / "logs/router-drain-toy-proxy-r0").glob("front-*.log"))) == 2


async def test_a_killed_server_is_started_again_and_seen_to_be_used(bench, monkeypatch):
    killed: list[str] = []
    monkeypatch.setattr("benchmarks.serving.failing.cell.AFTER_RETURN_S", 0.5)
    monkeypatch.setattr(Stage, "kill", lambda stage, name: killed.append(name))
    faults: list[object] = []
    async with cluster(faults) as servers:
        record = await run_cell(bench, servers, CONTENDERS["toy-proxy"], short(SCENARIOS["kill-decode"]), 0)
    assert (killed, faults) == (["d0"], ["restart d0"])
    moments = record["moments_s"]
    assert moments["fault"] < moments["start"] <= moments["healthy"] <= moments["used"]
    assert record["verdicts"]["right"] == record["requests"] == len(record["each"])
    assert record["each"][-1][0] < 60.0


async def test_a_fault_that_is_refused_ends_the_cell(bench):
    scenario = replace(short(SCENARIOS["hang-decode"]), act=lambda stage, _: stage.fault("d0", kind="none"))
    async with cluster([]) as servers:
        with pytest.raises(ClusterError, match="d0 must take the fault"):
            await run_cell(bench, servers, CONTENDERS["toy-proxy"], scenario, 0)
