"""What is read from the servers' metrics."""

import asyncio

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from benchmarks.serving.servers import (
    counters_of,
    gaps_counted,
    group_cpu_s,
    grown,
    lease_counts,
    machine_cpu_s,
    violations_by_cause,
    wait_idle,
)
from vllm_kairos.errors import ClusterError

TEXT = """\
# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_preemptions_total{engine="0"} 3.0
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 9.0
kairos_tbt_violations_total{cause="deflected",model="m"} 5.0
kairos_tbt_violations_total{cause="decode"} 1.0
kairos_tbt_violations_created{cause="decode"} 1.7e+09
kairos_token_gaps_total{cause="deflected",engine="0"} 40.0
kairos_token_gaps_total{cause="decode",engine="0"} 60.0
kairos_token_gap_seconds_bucket{cause="decode",le="0.08"} 55.0
kairos_leases_granted_total{engine="0"} 12.0
kairos_leases_granted_created{engine="0"} 1.7e+09
kairos_lease_admissions_total{engine="0"} 7.0
kairos_lease_refusals_total{engine="0",reason="spent"} 2.0
kairos_lease_refusals_total{engine="0",reason="not-yours"} 1.0
kairos_leases_revoked_total{engine="0",reason="low-blocks"} 3.0
"""


def test_only_what_is_watched_is_kept():
    found = counters_of(TEXT)
    assert found["vllm:num_requests_running"] == 2.0
    assert found["kairos_tbt_violations_total/deflected"] == 5.0
    assert not [name for name in found if "_bucket" in name or "_created" in name]


def test_growth_is_of_counters_alone():
    before, after = counters_of(TEXT), counters_of(TEXT.replace("} 5.0", "} 9.0").replace("} 2.0", "} 7.0"))
    growth = grown(before, after)
    assert violations_by_cause(growth) == {"deflected": 4.0, "decode": 0.0}
    assert "vllm:num_requests_running" not in growth


def test_what_became_of_leases_is_counted_by_reason_and_in_all():
    growth = grown(counters_of(""), counters_of(TEXT))
    assert lease_counts(growth) == {
        "leases_granted": 12.0,
        "lease_admissions": 7.0,
        "lease_refusals": 3.0,
        "lease_refusals_spent": 2.0,
        "lease_refusals_not-yours": 1.0,
        "leases_revoked": 3.0,
        "leases_revoked_low-blocks": 3.0,
    }
    assert lease_counts({"kairos_token_gaps_total/decode": 3.0}) == {}


def test_gaps_are_those_of_every_cause():
    assert gaps_counted(grown(counters_of(""), counters_of(TEXT))) == 100.0


async def _serve(levels):
    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text=f"vllm:num_requests_running {levels.pop(0) if len(levels) > 1 else levels[0]}\n")

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_idle_is_waited_for():
    server = await _serve([2.0, 1.0, 0.0])
    async with ClientSession() as session:
        counters, _ = await wait_idle(session, [str(server.make_url("")).rstrip("/")], limit_s=30.0)
    assert counters["vllm:num_requests_running"] == 0.0
    await server.close()


async def test_servers_that_stay_busy_are_named():
    server = await _serve([2.0])
    async with ClientSession() as session:
        with pytest.raises(ClusterError, match="idle within 0"):
            await wait_idle(session, [str(server.make_url("")).rstrip("/")], limit_s=0.0)
    await server.close()


async def test_a_server_that_is_gone_is_an_error():
    async with ClientSession() as session:
        with pytest.raises(ClusterError, match="must answer"):
            await wait_idle(session, ["http://127.0.0.1:9"], limit_s=1.0)


async def test_cpu_seconds_only_grow():
    process = await asyncio.create_subprocess_exec("sleep", "5", start_new_session=True)
    before_s, (busy_s, had_s) = group_cpu_s([process.pid]), machine_cpu_s()
    assert group_cpu_s([process.pid]) >= before_s >= 0.0
    assert had_s >= busy_s > 0.0
    process.kill()
    await process.wait()
