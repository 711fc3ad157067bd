"""A stand-in for the toy proxy that says what the emulated model in KAIROS_STUB_MODEL says."""

import argparse
import asyncio
import json
import os
from pathlib import Path

from aiohttp import web

from benchmarks.serving.failing.expected import Model

_MODEL = Model(Path(os.environ["KAIROS_STUB_MODEL"]))
_TOKEN_S = 0.005


async def _complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for word in _MODEL.answer(body["prompt"], body["max_tokens"]):
        await answer.write(b"data: " + json.dumps({"choices": [{"text": f" {word}"}]}).encode() + b"\n\n")
        await asyncio.sleep(_TOKEN_S)
    await answer.write(b"data: [DONE]\n\n")
    return answer


async def _healthy(_request: web.Request) -> web.Response:
    return web.Response()


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args()
    app = web.Application()
    app.add_routes([web.get("/healthcheck", _healthy), web.post("/v1/completions", _complete)])
    web.run_app(app, host=args.host, port=args.port, print=None, shutdown_timeout=5.0)


if __name__ == "__main__":
    main()
