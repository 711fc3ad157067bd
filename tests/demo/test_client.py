"""The load client against a server that plays each way an answer can go."""

from aiohttp import web
from aiohttp.test_utils import TestServer

from vllm_kairos.demo.client import Sample, send_load, send_one_by_one
from vllm_kairos.demo.load import PlannedRequest

REQUEST = PlannedRequest(at_s=0.0, prompt=(1, 2, 3), output_tokens=3)


async def _ask(*events: str, status: int = 200, one_by_one: bool = False) -> Sample:
    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert (body["prompt"], body["max_tokens"], body["stream"]) == ([1, 2, 3], 3, True)
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/completions", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/"))
        send = send_one_by_one if one_by_one else send_load
        return (await send(url, "tiny", [REQUEST]))[0]


def _tokens(*ids: int) -> str:
    return f'{{"choices": [{{"text": "x", "token_ids": {list(ids)}}}]}}'


async def test_every_token_has_its_time() -> None:
    for one_by_one in (False, True):
        sample = await _ask(_tokens(7), _tokens(8, 9), "[DONE]", one_by_one=one_by_one)
        assert not sample.error
        assert len(sample.token_times_s) == 3
        assert len(sample.gaps_s) == 2
        assert sample.ttft_s >= 0


async def test_an_answer_that_is_not_whole_is_an_error() -> None:
    assert "2 of 3 tokens" in (await _ask(_tokens(7, 8), "[DONE]")).error
    assert "without [DONE]" in (await _ask(_tokens(7, 8, 9))).error
    assert "status 503" in (await _ask("no", status=503)).error
    assert "error event" in (await _ask(_tokens(7), '{"error": "decode died"}', "[DONE]")).error
    assert (await _ask("not json")).error


async def test_a_server_that_is_not_there_is_an_error() -> None:
    sample = (await send_load("http://127.0.0.1:9", "tiny", [REQUEST]))[0]
    assert "ClientConnectorError" in sample.error
