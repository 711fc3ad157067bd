"""What servers say of themselves, over HTTP."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from kairos_router.discovery import MAX_ANSWER_BYTES, NodeFacts, ProbeError, Prober
from vllm_kairos.core.node import Role

NODE = {
    "schema": 1,
    "node_id": "d0",
    "role": "decode",
    "model": "m",
    "state_endpoints": ["tcp://*:5557", "tcp://*:5558"],
    "vllm_version": "0.32.0",
    "kairos_version": "0.1",
    "block_size_tokens": 16,
    "max_model_len_tokens": 4096,
    "dp_size": 2,
}
MODELS = {
    "object": "list",
    "data": [
        {"id": "m", "root": "/models/m", "parent": None, "max_model_len": 8192},
        {"id": "adapter", "root": "/loras/a", "parent": "m"},
    ],
}


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def facts_of(aiohttp_server, session, answers: dict[str, object]) -> NodeFacts:
    app = web.Application()
    for path, answer in answers.items():

        async def handle(_: web.Request, answer: object = answer) -> web.Response:
            return answer() if callable(answer) else web.json_response(answer)

        app.router.add_get(path, handle)
    server = await aiohttp_server(app)
    return await Prober(session, timeout_s=5).facts(f"http://127.0.0.1:{server.port}")


async def test_both_routes_are_put_together(aiohttp_server, session):
    facts = await facts_of(aiohttp_server, session, {"/kairos/node": NODE, "/v1/models": MODELS})
    assert facts == NodeFacts(
        node_id="d0",
        role=Role.DECODE,
        models=frozenset({"m", "/models/m"}),  # adapters are not the model
        max_model_len_tokens=4096,
        block_size_tokens=16,
        dp_size=2,
        state_endpoints=("tcp://*:5557", "tcp://*:5558"),
        vllm_version="0.32.0",
    )


async def test_a_server_without_our_plugin_has_models_alone(aiohttp_server, session):
    facts = await facts_of(aiohttp_server, session, {"/v1/models": MODELS})
    assert facts == NodeFacts(models=frozenset({"m", "/models/m"}), max_model_len_tokens=8192)


@pytest.mark.parametrize("said", [{"schema": 1}, {**NODE, "node_id": None, "role": "both", "state_endpoints": []}])
async def test_a_server_whose_plugin_is_not_set_up_has_no_name(aiohttp_server, session, said):
    assert (await facts_of(aiohttp_server, session, {"/kairos/node": said})).node_id is None


@pytest.mark.parametrize("said", [lambda: web.Response(text="hello"), {**NODE, "role": "cook"}, {**NODE, "dp_size": "two"}])
async def test_nonsense_is_an_error_of_the_server(aiohttp_server, session, said):
    with pytest.raises(ProbeError, match="/kairos/node"):
        await facts_of(aiohttp_server, session, {"/kairos/node": said})


async def test_a_redirect_is_not_followed(aiohttp_server, session):
    def elsewhere() -> web.Response:
        return web.Response(status=302, headers={"location": "http://169.254.169.254/"})

    facts = await facts_of(aiohttp_server, session, {"/kairos/node": elsewhere, "/v1/models": elsewhere})
    assert facts == NodeFacts()


async def test_a_long_list_is_read_whole_and_an_endless_one_refused(aiohttp_server, session):
    many = {"data": [{"id": f"model-{number}"} for number in range(5000)]}
    assert len((await facts_of(aiohttp_server, session, {"/v1/models": many})).models) == 5000
    with pytest.raises(ProbeError, match="/v1/models answered more than"):
        await facts_of(aiohttp_server, session, {"/v1/models": lambda: web.Response(text="x" * (MAX_ANSWER_BYTES + 1))})


async def test_health_is_a_200_and_nothing_else(aiohttp_server, session):
    async def ill(_: web.Request) -> web.Response:
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/health", ill)
    server = await aiohttp_server(app)
    prober = Prober(session, timeout_s=5)
    with pytest.raises(ProbeError, match="answered 503"):
        await prober.health(f"http://127.0.0.1:{server.port}", "/health")
    with pytest.raises(ProbeError, match="Connection refused"):
        await prober.health("http://127.0.0.1:1", "/health")


async def test_more_ranks_than_a_server_can_have_are_nonsense(aiohttp_server, session):
    with pytest.raises(ProbeError, match=r"Expected `int` <= 1024 - at `\$\.dp_size`"):
        await facts_of(aiohttp_server, session, {"/kairos/node": {**NODE, "dp_size": 10**9}})
