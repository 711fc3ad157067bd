"""What the endpoint says about itself before anything is timed."""

from urllib.parse import urlsplit

import aiohttp
import msgspec

from vllm_kairos.errors import ConfigError

_TIMEOUT = aiohttp.ClientTimeout(total=30)


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def base_url(url: str) -> str:
    """The URL before `/v1`, whichever of the two was given. Raises ConfigError."""
    if not urlsplit(url).hostname:
        raise ConfigError(f"--url must name a host, got {url!r}")
    return url.rstrip("/").removesuffix("/v1")


async def first_model(url: str, api_key: str) -> str:
    """The first model that the endpoint serves. Raises ConfigError when it cannot be asked or serves none."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT) as session,
            session.get(f"{url}/v1/models", headers=headers) as answer,
        ):
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError) as failure:
        raise ConfigError(f"--url must be an endpoint that answers, got {url}: {failure or 'no answer in time'}") from None
    if status != 200:
        raise ConfigError(f"--model must be given: {url}/v1/models answered {status}")
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except msgspec.DecodeError as failure:
        raise ConfigError(f"--model must be given: {url}/v1/models is no list of models: {failure}") from None
    if not models:
        raise ConfigError(f"--model must be given: {url}/v1/models lists none")
    return models[0].id
