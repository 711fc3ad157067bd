"""Who a request is on each leg: ids, credentials, ranks, and what clients may ask for by header."""

import pytest

from kairos_router import headers
from kairos_router.config import DeflectSettings
from kairos_router.failures import Leg
from kairos_router.registry import Worker
from tests.router.cluster import cluster, router_over
from tests.router.stubs import decode_server, prefilled, running
from vllm_kairos.core.node import Role

NAMES = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")


async def test_leg_ids_never_repeat_across_router_restarts():
    """Case 19."""
    async with running(lambda received: prefilled()) as p, running(decode_server) as d:
        for _ in range(2):
            async with router_over([p], [d]) as up:
                for _ in range(3):
                    assert (await up.complete())[0] == 200
                    assert (await up.post("/v1/completions", {"prompt": "x"}, x_request_id="mine"))[0] == 200
        ids = [leg.headers["x-request-id"] for leg in (*p.received, *d.received)]
    assert len(ids) == len(set(ids)) == 24
    assert sum(leg_id.startswith("mine-") for leg_id in ids) == 12


@pytest.mark.parametrize("name", NAMES)
async def test_the_clients_id_comes_back_and_begins_each_legs_id(name):
    async with cluster() as up:
        async with up.session.post(up.url + "/v1/completions", json={"prompt": "x"}, headers={name: "abc-1"}) as response:
            assert response.headers["x-request-id"] == "abc-1"
        for leg in (*up.prefill[0].received, *up.decode[0].received):
            assert leg.headers["x-request-id"].startswith("abc-1-")
        assert up.records()[0]["request_id"] == "abc-1"


def test_the_first_header_that_has_an_id_wins_and_its_value_is_made_safe():
    assert headers.request_id({"x-request-id": " ", "x-trace-id": "t"}, NAMES) == "t"
    assert headers.request_id({"x-request-id": 'a"b\nc{}'}, NAMES) == "a-b-c--"
    assert len(headers.request_id({"x-request-id": "z" * 9999}, NAMES)) == 128
    assert headers.request_id({}, NAMES) != headers.request_id({}, NAMES)


def sent(api_key: str | None = None, rank: int | None = None, **given: str) -> dict[str, str]:
    incoming = {name.replace("_", "-"): value for name, value in given.items()}
    return headers.leg_headers(incoming, leg_id="id", dp_rank=rank, api_key=api_key)


def test_authorization_is_forwarded_and_never_empty():
    assert sent(authorization="Bearer k")["authorization"] == "Bearer k"
    assert sent("mine", authorization="Bearer k")["authorization"] == "Bearer k"
    assert sent("mine")["authorization"] == "Bearer mine"
    for empty in ("", "Bearer", "bearer ", " Bearer  "):
        assert "authorization" not in sent(authorization=empty)
        assert sent("mine", authorization=empty)["authorization"] == "Bearer mine"


def test_trace_headers_pass_and_hop_by_hop_headers_do_not():
    leg = sent(traceparent="00-1-2-01", tracestate="a=1", connection="close, x-private", x_private="1", host="h", te="trailers")
    assert leg.keys() == {"traceparent", "tracestate", "x-request-id", "accept-encoding"}


def test_a_clients_rank_reaches_neither_role():
    """Case 73."""
    assert "x-data-parallel-rank" not in sent(x_data_parallel_rank="3")
    assert sent(x_data_parallel_rank="3", rank=1)["x-data-parallel-rank"] == "1"


async def test_ranks_of_a_worker_added_at_run_time_are_spread():
    """Case 73."""
    async with cluster() as up:
        known = up.parts.workers.all()[1]
        up.parts.workers.remove(known.name)
        up.parts.workers.add(Worker(name=known.name, role=Role.DECODE, url=known.url, dp_size=4))
        for _ in range(40):
            assert (await up.post("/v1/completions", {"prompt": "x"}, x_data_parallel_rank="2"))[0] == 200
        ranks = [leg.headers["x-data-parallel-rank"] for leg in up.decode[0].received]
        assert {ranks.count(rank) for rank in "0123"} == {10}
        assert all("x-data-parallel-rank" not in leg.headers for leg in up.prefill[0].received)


def test_leg_ids_differ_by_leg_and_attempt():
    ids = {headers.leg_id("r", "u", leg, attempt) for leg in Leg for attempt in range(3)}
    assert len(ids) == 6


async def test_a_pinned_prefill_server_must_be_registered():
    async with cluster(prefill=[lambda received: prefilled()] * 2) as up:
        pin = up.prefill[1].name
        for _ in range(3):
            assert (await up.post("/v1/completions", {"prompt": "x"}, x_prefiller_host_port=pin))[0] == 200
        assert len(up.prefill[1].received) == 3
        assert all("x-prefiller-host-port" not in leg.headers for leg in up.prefill[1].received)
        for foreign in ("169.254.169.254:80", up.decode[0].name, "nonsense"):
            code, body = await up.post("/v1/completions", {"prompt": "x"}, x_prefiller_host_port=foreign)
            assert (code, foreign in body["error"]["message"]) == (400, True)
        assert up.prefill[0].received == []


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_client_may_force_local_only_where_the_operator_allows_it(allowed):
    async with cluster(deflect=DeflectSettings(force_local=allowed)) as up:
        await up.post("/v1/completions", {"prompt": "x"}, x_bypass_remote_prefill="true")
        await up.post("/v1/completions", {"prompt": "x", "do_local_prefill": True})
        assert len(up.prefill[0].received) == (0 if allowed else 2)
        assert [record["reason"] == "client-asked" for record in up.records()] == [allowed] * 2
        assert all("do_local_prefill" not in leg.body for leg in up.decode[0].received)


@pytest.mark.parametrize(
    "name", ["x-llm-d-slo-ttft-ms", "x-llm-d-slo-tpot-ms", "x-slo-ttft-ms", "x-slo-tbt-ms", "x-slo-tpot-ms"]
)
async def test_objectives_come_from_headers_and_bad_ones_are_named(name):
    async with cluster() as up:
        for bad in ("fast", "-1", "0", "nan", "inf", ""):
            async with up.session.post(up.url + "/v1/completions", json={"prompt": "x"}, headers={name: bad}) as response:
                assert response.status == 400
                assert f"header {name} must be" in await response.text()
        async with up.session.post(up.url + "/v1/completions", json={"prompt": "x"}, headers={name: "250"}) as response:
            assert response.status == 200
        asked = up.policy.asked[-1]
        assert (asked.ttft_slo_s if "ttft" in name else asked.tbt_slo_s) == 0.25


def test_a_server_header_that_no_answer_may_hold_is_dropped():
    given = {"X-Odd": "a\x7fb", "X-Break": "a\r\nset-cookie: x", "X-Fine": "a\tb \u00e9"}
    assert headers.client_headers(given, request_id="r") == {"x-fine": "a\tb \u00e9", "x-request-id": "r"}
