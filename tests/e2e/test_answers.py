"""The same greedy answer whichever way a prompt was prefilled."""

import pytest

from tests.e2e.client import Client, deflected, streamed_text
from tests.e2e.prompts import LONG, SHORT, VERY_LONG, distinct

pytestmark = pytest.mark.e2e

WHOLE_BLOCKS_TOKENS = 8 * 32  # long enough to be kept
SCHEDULES = [(32,), (64, 128), (300,), (48, 1, 512), (2048,)]


@pytest.mark.parametrize("prompt", [SHORT, LONG, VERY_LONG], ids=["short", "long", "very-long"])
async def test_a_kept_prompt_is_answered_as_by_one_server(prefill: Client, router: Client, prompt: str) -> None:
    kept = distinct(LONG if prompt is SHORT else prompt, "kept")
    direct, through = await prefill.complete(kept), await router.complete(kept)
    assert through.status == 200
    assert through.texts == direct.texts
    assert through.body["usage"] == direct.body["usage"]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: "-".join(map(str, schedule)))
async def test_every_chunk_schedule_gives_one_servers_answer(
    prefill: Client, decode: Client, schedule: tuple[int, ...]
) -> None:
    prompt = distinct(LONG, f"schedule {schedule}")
    direct, local = await prefill.complete(prompt), await decode.complete(prompt, **deflected(*schedule))
    assert local.status == 200
    assert local.texts == direct.texts


async def test_the_router_deflects_what_its_policy_says(prefill: Client, router: Client) -> None:
    prompt = distinct(SHORT, "deflect me")
    before = await router.metric("kairos_router_decisions_total", decision_type="decode-only")
    direct, through = await prefill.complete(prompt), await router.complete(prompt)
    assert through.texts == direct.texts
    assert await router.metric("kairos_router_decisions_total", decision_type="decode-only") == before + 1


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["deflected", "kept"])
async def test_chat_answers_as_one_server_does(prefill: Client, router: Client, prompt: str) -> None:
    question = distinct(prompt, "chat")
    assert (await router.chat(question)).texts == (await prefill.chat(question)).texts


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["deflected", "kept"])
async def test_a_stream_adds_up_to_the_whole_answer(router: Client, prompt: str) -> None:
    question = distinct(prompt, "stream")
    events = await router.stream(question)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    assert streamed_text(events) == (await router.complete(question)).texts[0]


@pytest.mark.parametrize("prompt", [SHORT, LONG], ids=["deflected", "kept"])
async def test_token_ids_are_a_prompt_too(prefill: Client, router: Client, prompt: str) -> None:
    async with prefill.session.post("/tokenize", json={"model": prefill.model, "prompt": distinct(prompt, "ids")}) as answer:
        tokens = (await answer.json())["tokens"]
    assert (await router.complete(tokens)).texts == (await prefill.complete(tokens)).texts


async def test_a_prompt_of_whole_blocks_is_decoded_once_and_exactly(decode: Client, router: Client) -> None:
    """Case 8: prefill's own token neither lengthens the decode prompt at a block boundary nor shifts a cached one."""
    prompt = [1000 + 7 * at for at in range(WHOLE_BLOCKS_TOKENS)]
    cold, warm = await router.complete(prompt), await router.complete(prompt)
    direct = await decode.complete(prompt)
    assert cold.texts == warm.texts == direct.texts
    assert cold.body["usage"] == direct.body["usage"]
