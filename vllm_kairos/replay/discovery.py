"""What the endpoint says about itself before anything is timed."""

import aiohttp
import msgspec

from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.words import WORDS, Measure

_TIMEOUT = aiohttp.ClientTimeout(total=30)


class _Model(msgspec.Struct):
    id: str


class _Count(msgspec.Struct):
    count: int


class _Models(msgspec.Struct):
    data: list[_Model]


def base_url(url: str) -> str:
    """The URL before `/v1`, whichever of the two was given."""
    return url.rstrip("/").removesuffix("/v1")


async def measured(url: str, api_key: str, model: str, *, chat: bool) -> Measure | None:
    """How the server counts our words and its template, from two texts given to vLLM's /tokenize; None without one."""
    counts = []
    async with aiohttp.ClientSession(timeout=_TIMEOUT, headers=_authorization(api_key)) as session:
        for repeats in (1, 2):
            count = await _count(session, f"{url}/tokenize", model, " ".join(WORDS * repeats), chat=chat)
            if count is None:
                return None
            counts.append(count)
    tokens_per_word = (counts[1] - counts[0]) / len(WORDS)
    if tokens_per_word <= 0:
        return None
    return Measure(tokens_per_word=tokens_per_word, template_tokens=max(0, round(2 * counts[0] - counts[1])))


async def _count(session: aiohttp.ClientSession, url: str, model: str, text: str, *, chat: bool) -> int | None:
    asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
    try:
        async with session.post(url, json={"model": model, **asked}) as answer:
            return msgspec.json.decode(await answer.read(), type=_Count).count if answer.status == 200 else None
    except (aiohttp.ClientError, OSError, msgspec.DecodeError, RecursionError):
        return None


async def first_model(url: str, api_key: str) -> str:
    """The first model that the endpoint serves. Raises ConfigError when it cannot be asked or serves none."""
    session = aiohttp.ClientSession(timeout=_TIMEOUT, headers=_authorization(api_key))
    try:
        async with session, session.get(f"{url}/v1/models") as answer:
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as failure:
        raise ConfigError(f"--url must be an endpoint that answers, got {url}: {failure or 'no answer in time'}") from None
    if status != 200:
        raise ConfigError(f"--model must be given: {url}/v1/models answered {status}")
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except (msgspec.DecodeError, RecursionError) as failure:
        raise ConfigError(f"--model must be given: {url}/v1/models is no list of models: {failure}") from None
    if not models:
        raise ConfigError(f"--model must be given: {url}/v1/models lists none")
    return models[0].id


def _authorization(api_key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {api_key}"} if api_key else {}
