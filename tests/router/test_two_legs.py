"""The two-leg path and the deflected path against stub servers."""

from tests.router.cluster import cluster
from tests.router.stubs import handle, prefilled

PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


async def test_a_completion_takes_both_legs():
    kv = handle()
    async with cluster(prefill=[lambda received: prefilled(kv)]) as up:
        status, body = await up.complete(max_tokens=50, temperature=0.5)
        assert (status, body["choices"][0]["text"]) == (200, "Hello world")
        (p_leg,), (d_leg,) = up.prefill[0].received, up.decode[0].received
        assert p_leg.body == {
            "model": "m",
            "prompt": "hi",
            "max_tokens": 1,
            "temperature": 0.5,
            "stream": False,
            "kv_transfer_params": PREFILL_PARAMS,
        }
        assert d_leg.body == {"model": "m", "prompt": "hi", "max_tokens": 50, "temperature": 0.5, "kv_transfer_params": kv}


async def test_a_forced_local_request_takes_one_leg_with_a_schedule_and_no_remote_key():
    async with cluster() as up:
        status, _ = await up.complete(n=3)
        assert status == 200
        assert up.prefill[0].received == []
        assert up.decode[0].received[0].kv == {"kairos": {"schema": 1, "chunk_schedule": [128]}}


async def test_a_stream_reaches_the_client_byte_for_byte():
    async with cluster() as up:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
        async with up.session.post(up.url + "/v1/chat/completions", json=body) as response:
            got = await response.read()
            assert response.content_type == "text/event-stream"
        assert got.endswith(b"data: [DONE]\n\n")
        (record,) = up.records()
        assert record["completion_tokens"] == 2
        assert record["decision"] == "prefill-decode"
