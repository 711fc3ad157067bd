"""Giving up a KV handle frees the prefill server long before its lease ends (cases 34 and 35)."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from kairos_router import payload
from kairos_router.payload import Endpoint
from tests.e2e.client import Client
from tests.e2e.prompts import LONG, distinct

pytestmark = pytest.mark.e2e

LEASE_S = 30.0
"""vLLM's default."""
USED = "vllm:kv_cache_usage_perc"


async def prefilled(prefill: Client, topic: str) -> dict[str, Any]:
    """Run a prefill leg as the router does and return the handle."""
    body = msgspec.json.encode({"model": prefill.model, "prompt": distinct(LONG, topic), "max_tokens": 9})
    leg = payload.prefill_leg(payload.parse(Endpoint.COMPLETIONS, body))
    async with prefill.session.post("/v1/completions", data=leg, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 200, await answer.text()
        handle: dict[str, Any] = (await answer.json())["kv_transfer_params"]
        return handle


async def freed_after_s(prefill: Client) -> float:
    """Seconds until the prefill server holds no KV; small requests keep its engine stepping and its gauge fresh."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2 * LEASE_S:
        await prefill.complete("a", max_tokens=1)
        if await prefill.metric(USED) == 0:
            break
        await asyncio.sleep(0.2)
    return time.monotonic() - began_s


async def test_a_handle_given_up_is_freed_at_once(router: Client, prefill: Client, decode: Client) -> None:
    await router.complete(distinct(LONG, "the servers know each other"))
    handle = await prefilled(prefill, "given up")
    await prefill.complete("a", max_tokens=1)
    assert await prefill.metric(USED) > 0, "the finished prefill's blocks are kept for a decode server"
    before = await decode.metric("vllm:generation_tokens_total")
    release = payload.release_leg(handle)
    async with decode.session.post("/v1/completions", data=release, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 404, await answer.text()
    assert await freed_after_s(prefill) < LEASE_S / 3
    assert await decode.metric("vllm:generation_tokens_total") == before, "no token is computed for nobody"


async def test_a_client_that_leaves_leaves_nothing_on_the_prefill_server(router: Client, prefill: Client) -> None:
    """Whatever the moment: in the prefill leg, between the legs, before the first token."""
    body = {"model": router.model, "prompt": distinct(LONG, "leaves"), "max_tokens": 64, "ignore_eos": True}
    for wait_s in (0.02, 0.1, 0.3, 0.6):
        request = asyncio.create_task(router.session.post("/v1/completions", json=body))
        await asyncio.sleep(wait_s)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    assert await freed_after_s(prefill) < LEASE_S / 3
