"""Prefill and decode legs sent by hand, past any router: they use up what a scenario left of its transfer faults."""

import random
from contextlib import suppress
from typing import Any

import aiohttp

from benchmarks.serving.failing.scenarios import TRANSFERS
from vllm_kairos.cluster.plan import ClusterPlan, ProcessPlan

_TIMEOUT = aiohttp.ClientTimeout(total=20)
_PROMPT_TOKENS = 64
_ASKED = {"do_remote_decode": True, "do_remote_prefill": False}


async def use_up_faults(session: aiohttp.ClientSession, plan: ClusterPlan, repeat: int) -> None:
    """Hand as many prompts from each prefill to each decode server as there could be faults left; failing is fine."""
    draw = random.Random(repeat)
    for _ in range(TRANSFERS):
        for prefill, decode in zip(plan.prefill, plan.decode, strict=True):
            prompt = [draw.randrange(1_000, 30_000) for _ in range(_PROMPT_TOKENS)]
            with suppress(aiohttp.ClientError, TimeoutError):
                await _hand_over(session, plan.served_model_name, prefill, decode, prompt)


async def _hand_over(
    session: aiohttp.ClientSession, model: str, prefill: ProcessPlan, decode: ProcessPlan, prompt: list[int]
) -> None:
    body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": 1}
    answer = await _complete(session, prefill, body | {"kv_transfer_params": _ASKED})
    if handle := answer.get("kv_transfer_params"):
        await _complete(session, decode, body | {"kv_transfer_params": handle})


async def _complete(session: aiohttp.ClientSession, server: ProcessPlan, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"{server.url}/v1/completions", json=body, timeout=_TIMEOUT) as answer:
        found: dict[str, Any] = await answer.json()
    return found
