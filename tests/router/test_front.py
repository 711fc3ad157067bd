"""The router's own answers: operators' routes, admission, draining, bad input, many requests."""

import asyncio
import gzip
import random

import aiohttp
import pytest

from kairos_router.admission import TokenBucket
from kairos_router.config import DeflectSettings, LimitSettings
from tests.router.cluster import Cluster, cluster, until
from tests.router.stubs import Received, Reply, decode_server


async def get(up: Cluster, path: str, **kwargs) -> tuple[int, object]:
    async with up.session.get(up.url + path, **kwargs) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("path", ["/health", "/healthcheck", "/health_generate", "/readiness", "/liveness"])
async def test_health_routes_answer(path):
    async with cluster() as up:
        code, said = await get(up, path)
        assert (code, said["status"]) == (200, "ok")
        if path == "/healthcheck":
            assert (said["prefill_instances"], said["decode_instances"]) == (1, 1)


@pytest.mark.parametrize(("mode", "code"), [("fail", 503), ("deflect-bounded", 200)])
async def test_health_without_prefill_servers_depends_on_what_may_be_deflected(mode, code):
    async with cluster(deflect=DeflectSettings(prefill_unavailable=mode)) as up:
        up.parts.workers.drain(up.prefill[0].name)
        assert (await get(up, "/health"))[0] == code
        up.parts.workers.drain(up.decode[0].name)
        assert (await get(up, "/health"))[1]["status"] == "no-decode-node"


async def test_servers_are_listed_added_and_removed():
    async with cluster() as up:
        listed = (await get(up, "/workers"))[1]
        assert [worker["role"] for worker in listed["workers"]] == ["prefill", "decode"]
        assert (await get(up, "/list_workers"))[1]["urls"] == [up.prefill[0].url, up.decode[0].url]
        code, added = await up.post("/workers", {"url": "http://127.0.0.1:9", "role": "decode"})
        assert (code, added["accepting"]) == (201, True)
        async with up.session.delete(up.url + "/workers/127.0.0.1:9") as response:
            assert response.status == 200
        async with up.session.post(up.url + "/add_worker?url=http://127.0.0.1:9&role=prefill") as response:
            assert response.status == 201
        async with up.session.post(up.url + "/remove_worker?url=http://127.0.0.1:9") as response:
            assert response.status == 200
        assert len(up.parts.workers.all()) == 2


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"url": "http://127.0.0.1:9"}, "role must be one of"),
        ({"role": "decode"}, "url must be a non-empty string"),
        ({"url": "http://127.0.0.1:9", "role": "decode", "bootstrap_port": "x"}, "bootstrap_port must be"),
        ({"url": "http://127.0.0.1:9", "role": "decode", "bootstrap_port": 1e300}, "bootstrap_port must be an integer from 1"),
        ({"url": "http://127.0.0.1:9", "role": "decode", "bootstrap_port": -5}, "bootstrap_port must be an integer from 1"),
        ([1], "request body must be a JSON object"),
    ],
)
async def test_a_bad_server_is_refused_by_field(body, said):
    async with cluster() as up:
        code, answer = await up.post("/workers", body)
        assert (code, said in answer["error"]["message"]) == (400, True)


async def test_an_unknown_server_cannot_be_removed():
    async with cluster() as up:
        assert (await up.post("/remove_worker", {"name": "ghost"}))[0] == 404


async def test_the_api_key_guards_the_operators_routes_and_is_sent_where_the_client_sent_none():
    async with cluster(api_key="k") as up:
        assert (await get(up, "/workers"))[0] == 401
        assert (await get(up, "/workers", headers={"authorization": "Bearer no"}))[0] == 401
        assert (await get(up, "/workers", headers={"authorization": "Bearer k"}))[0] == 200
        assert (await get(up, "/health"))[0] == 200
        await up.complete()
        assert up.decode[0].received[0].headers["authorization"] == "Bearer k"


async def test_browsers_of_allowed_origins_are_served():
    async with cluster(cors_allowed_origins=("https://a.example",)) as up:
        async with up.session.options(up.url + "/v1/completions", headers={"origin": "https://a.example"}) as response:
            assert response.status == 204
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            async with up.session.get(up.url + "/health", headers={"origin": origin}) as response:
                assert response.headers.get("access-control-allow-origin") == allowed


async def test_loads_and_metrics_are_shown():
    async with cluster() as up:
        await up.complete()
        loads = (await get(up, "/get_loads"))[1]["loads"]
        assert [load["node"] for load in loads] == [up.prefill[0].name, up.decode[0].name]
        async with up.session.get(up.url + "/metrics") as response:
            assert 'decision_type="prefill-decode"' in await response.text()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1]",
        b'{"prompt": "\xff"}',
        b'{"prompt": "x", "vllm_xargs": {"kairos_tbt_slo_s": NaN}}',
        b'{"prompt": "x", "vllm_xargs": {"kairos_tbt_slo_s": 1e400}}',
        b'{"prompt": "x", "user": "\\ud800"}',
    ],
)
async def test_bad_json_is_a_400_that_says_so(raw):
    async with cluster() as up, up.session.post(up.url + "/v1/completions", data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["reason"] == "invalid-request"
        assert up.prefill[0].received == []


async def test_a_body_over_the_limit_is_a_413():
    async with cluster(limits=LimitSettings(max_payload_bytes=1000)) as up:
        code, body = await up.complete(prompt="x" * 2000)
        assert (code, body["error"]["reason"]) == (413, "body-too-large")


async def test_a_full_queue_is_a_429_and_a_long_wait_a_408():
    gate = asyncio.Event()

    def slow(received):
        return Reply(gate=gate, json={"choices": []})

    limits = LimitSettings(max_concurrent_requests=1, queue_size=1, queue_timeout_s=0.5)
    async with cluster(decode=[slow], limits=limits) as up:
        first = asyncio.create_task(up.complete())
        await up.decode[0].until(lambda stub: stub.active == 1)
        second = asyncio.create_task(up.complete())
        await until(lambda: up.metric("kairos_router_queue_requests") == 1)
        async with up.session.post(up.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 429
            assert response.headers["retry-after"] == "1"
        code, body = await second
        assert (code, body["error"]["reason"]) == (408, "queue-timeout")
        gate.set()
        assert (await first)[0] == 200
        assert (await up.complete())[0] == 200


async def test_a_waiting_client_that_leaves_frees_its_place():
    gate = asyncio.Event()
    limits = LimitSettings(max_concurrent_requests=1, queue_size=1)
    async with cluster(decode=[lambda received: Reply(gate=gate, json={})], limits=limits) as up:
        first = asyncio.create_task(up.complete())
        await up.decode[0].until(lambda stub: stub.active == 1)
        second = asyncio.create_task(up.complete())
        await until(lambda: up.metric("kairos_router_queue_requests") == 1)
        second.cancel()
        await until(lambda: up.metric("kairos_router_queue_requests") == 0)
        gate.set()
        assert (await first)[0] == 200
        assert (await up.complete())[0] == 200


async def test_the_rate_limit_is_a_429():
    async with cluster(limits=LimitSettings(rate_limit_requests_per_s=0.001)) as up:
        assert (await up.complete())[0] == 200
        async with up.session.post(up.url + "/v1/completions", json={"prompt": "x"}) as response:
            assert response.status == 429
            assert int(response.headers["retry-after"]) > 500


def test_the_bucket_refills_at_its_rate():
    bucket = TokenBucket(2.0, 0.0)
    assert [bucket.wait_s(0.0) for _ in range(3)] == [0.0, 0.0, 0.5]
    assert bucket.wait_s(0.5) == 0.0
    assert bucket.wait_s(0.5) == 0.5


async def test_nothing_is_left_after_many_requests_and_disconnects():
    """Case 75, over real connections; the 20,000 are in test_flow.py."""
    async with cluster(prefill=[lambda received: decode_server(received)]) as up:
        rng = random.Random(7)

        async def one() -> None:
            request = asyncio.create_task(up.complete())
            if rng.random() < 0.2:
                await asyncio.sleep(0.002)
                request.cancel()
            await asyncio.gather(request, return_exceptions=True)

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(10)))
        await until(lambda: up.metric("kairos_router_requests_active") == 0)
        assert up.view.open == {}
        assert up.parts.drain.active == 0


async def test_a_client_error_does_not_keep_the_connection_hostage():
    async with cluster() as up, aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for _ in range(3):
            async with session.post(up.url + "/v1/completions", data=b"{") as response:
                assert response.status == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
async def test_a_body_nested_without_end_is_a_400(path):
    raw = b'{"vllm_xargs":' * 400 + b"1" + b"}" * 400
    async with cluster() as up, up.session.post(up.url + path, data=raw) as response:
        assert response.status == 400
        assert (await response.json())["error"]["reason"] == "invalid-request"


async def test_a_compressed_body_goes_on_plain_and_a_broken_one_is_a_400():
    packed, coding = gzip.compress(b'{"model": "m", "prompt": "hi"}'), {"content-encoding": "gzip"}
    async with cluster() as up:
        async with up.session.post(up.url + "/v1/completions", data=packed, headers=coding) as response:
            assert response.status == 200
        assert all("content-encoding" not in leg.headers for leg in up.prefill[0].received + up.decode[0].received)
        async with up.session.post(up.url + "/v1/completions", data=b"no gzip", headers=coding) as response:
            assert response.status == 400
            assert "Can not decode content-encoding" in (await response.json())["error"]["message"]


async def test_a_key_of_other_bytes_is_a_401():
    async with cluster(api_key="k") as up:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(up.url.rpartition(":")[2]))
        writer.write(b"GET /workers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_a_long_model_name_fills_no_label_and_no_log():
    async with cluster() as up:
        assert (await up.complete(model="m" * 10_000))[0] == 200
        assert b"mmmmm" not in up.parts.metrics.render()
        assert len(up.records()[0]["model"]) == 256


async def test_an_answer_waits_for_no_bookkeeping(monkeypatch):
    async with cluster() as up:
        monkeypatch.setattr(up.parts.front._ledger._access_log, "write", lambda record: 1 / 0)
        assert (await up.complete())[0] == 200


async def test_a_client_that_does_not_read_a_large_answer_holds_only_its_own_connection():
    body = b'{"model":"m","prompt":"hi"}'
    limits = LimitSettings(max_concurrent_requests=1, queue_size=0)

    def long(received: Received) -> Reply:
        return Reply(json={"choices": [], "text": "x" * (20_000_000 if b"hi" in received.raw else 1)})

    async with cluster(decode=[long], limits=limits) as up:
        _, writer = await asyncio.open_connection("127.0.0.1", int(up.url.rpartition(":")[2]), limit=1024)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: bool(up.records()))
        assert (up.view.open, up.parts.drain.active) == ({}, 0)
        assert (await up.complete(prompt="short"))[0] == 200
        writer.transport.abort()
