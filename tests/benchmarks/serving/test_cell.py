"""One cell from the start of its front to idle servers, with stand-ins for both."""

from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.serving.cell import Bench, run_cell
from benchmarks.serving.contenders import CONTENDERS, Programs
from benchmarks.serving.record import flat
from benchmarks.serving.setting import Setting
from benchmarks.serving.sweep import CellKey
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import ClusterError

KEY = CellKey(repeat=0, rate_rps=8.0, contender="toy-proxy")
RAW = {"title": "small", "cluster": {}, "load": {"workload": "LPLD"}, "rates_rps": [8.0], "duration_s": 1.0}


@asynccontextmanager
async def _cluster(*, running=0.0):
    """One server that has so many requests."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=f'vllm:num_requests_running {running}\nkairos_tbt_violations_total{{cause="decode"}} 4\n')

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    server = TestServer(app)
    await server.start_server()
    plan = ProcessPlan(name="d0", argv=(), environment={}, port=server.port or 0)
    cluster_plan = ClusterPlan(
        prefill=(), decode=(plan,), model="none", served_model_name="stub", router_port=0, metrics_port=0
    )
    try:
        yield SimpleNamespace(plan=cluster_plan, pid=lambda name: 1)
    finally:
        await server.close()


def _bench(out: Path, program: Path) -> Bench:
    setting = Setting.of("small.yaml", RAW)
    return Bench(setting=setting, spec=ClusterSpec(), programs=Programs(toy_proxy=program), traces=None, out=out)


async def test_a_cell_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    bench = _bench(tmp_path, Path(__file__).with_name("stub_front.py"))
    async with _cluster() as cluster:
        record = await run_cell(bench, cluster, CONTENDERS["toy-proxy"], KEY)
    row = flat(record)
    assert (row["status"], row["requests"], row["failed"], row["slo_attainment"]) == ("ok", 8, 0, 1.0)
    assert record["load"]["requests"] == 8
    assert record["servers"]["tbt_violations_by_cause"] == {"decode": 0.0}
    assert row["front_cpu_s"] >= 0.0
    assert (tmp_path / "logs/r0-8-toy-proxy/front.log").is_file()


async def test_several_fronts_share_the_requests_and_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    bench = _bench(tmp_path, Path(__file__).with_name("stub_front.py"))
    async with _cluster() as cluster:
        record = await run_cell(bench, cluster, replace(CONTENDERS["toy-proxy"], processes=2), KEY)
    assert (record["status"], record["front"]["processes"], record["figures"]["failed"]) == ("ok", 2, 0)
    answered = [(tmp_path / f"logs/r0-8-toy-proxy/{at}/front.log").read_text().count("answered") for at in range(2)]
    assert answered == [8, 8]  # of the load and of the warm-up, half each
    assert record["machine"]["front_rss_mb"] > 20.0


async def test_a_front_that_ends_is_a_failed_cell(tmp_path):
    program = tmp_path / "broken.py"
    program.write_text("raise ValueError('no such flag')\n")
    async with _cluster() as cluster:
        record = await run_cell(_bench(tmp_path, program), cluster, CONTENDERS["toy-proxy"], KEY)
    assert record["status"] == "failed"
    assert "no such flag" in record["reason"]
    assert record["load"]["requests"] == 8


async def test_servers_that_never_become_idle_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.serving.cell._IDLE_LIMIT_S", 0.0)
    async with _cluster(running=1.0) as cluster:
        with pytest.raises(ClusterError, match="idle"):
            await run_cell(_bench(tmp_path, Path("unused")), cluster, CONTENDERS["toy-proxy"], KEY)
