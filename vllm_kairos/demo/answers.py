"""Checks that deflection changes no answer: one prompt, every way to prefill it, greedy and in float32."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

OUTPUT_TOKENS = 24
SCHEDULES: tuple[tuple[int, ...], ...] = ((32,), (128, 64), (257, 1, 512), (2048,))
_TEXT = (
    "A small lighthouse stood at the edge of a cold sea, and every night its keeper climbed the stairs, lit the lamp "
    "and wrote the names of the passing ships into a book. "
)
_QUESTIONS = ("The capital of France is", "The first ten prime numbers are", "Once upon a time")
PROMPTS: tuple[str, ...] = (*_QUESTIONS, *(f"{question}: {_TEXT * repeats}" for question in _QUESTIONS for repeats in (6, 30)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCheck:
    """How many prompts were answered alike by every path, and the first that was not."""

    prompts: int
    paths: int
    identical: int
    first_difference: str = ""


async def check_answers(*, prefill_url: str, decode_url: str, router_url: str, model: str) -> AnswerCheck:
    """Ask one server, plain P/D through the router, and the decode server with each chunk schedule.

    `router_url` is a router with policy `never`. Each path has its own cache salt, so that each prefills for itself.
    """
    identical, difference = 0, ""
    connector = aiohttp.TCPConnector(force_close=True)  # a server's turn comes when it may have dropped an idle one
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120), connector=connector) as session:
        for prompt in PROMPTS:
            answers = await _answers(session, prompt, prefill_url, decode_url, router_url, model)
            if len(set(answers.values())) == 1:
                identical += 1
            difference = difference or _difference(prompt, answers)
    return AnswerCheck(prompts=len(PROMPTS), paths=2 + len(SCHEDULES), identical=identical, first_difference=difference)


async def _answers(
    session: aiohttp.ClientSession, prompt: str, prefill_url: str, decode_url: str, router_url: str, model: str
) -> Mapping[str, tuple[int, ...]]:
    answers = {}
    for schedule in SCHEDULES:
        fields = {"kv_transfer_params": {"kairos": {"schema": 1, "chunk_schedule": list(schedule)}}}
        name = f"deflected {schedule}"
        answers[name] = await _ask(session, decode_url, model, prompt, {"cache_salt": name, **fields})
    answers["plain P/D"] = await _ask(session, router_url, model, prompt, {"cache_salt": "plain"})
    answers["one server"] = await _ask(session, prefill_url, model, prompt, {"cache_salt": "one"})
    return answers


async def _ask(session: aiohttp.ClientSession, url: str, model: str, prompt: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
    body = {"model": model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "temperature": 0, "return_token_ids": True}
    async with session.post(f"{url}/v1/completions", json=body | dict(fields)) as answer:
        payload = await answer.json()
    return tuple(payload["choices"][0]["token_ids"]) if answer.status == 200 else (-answer.status,)


def _difference(prompt: str, answers: Mapping[str, tuple[int, ...]]) -> str:
    expected = answers["one server"]
    other = next((name for name, tokens in answers.items() if tokens != expected), None)
    return "" if other is None else f"{prompt[:40]!r}: one server {list(expected)}, {other} {list(answers[other])}"
