"""A stand-in for the toy proxy: answers completions with as many tokens as asked for, at once."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web


def _chunk(body: Mapping[str, Any], at: int) -> bytes:
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": at + 1}
    return b"data: " + json.dumps({"choices": [{"text": "x"}], "usage": usage}).encode() + b"\n\n"


async def _complete(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for at in range(body["max_tokens"]):
        await answer.write(_chunk(body, at))
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
    web.run_app(app, host=args.host, port=args.port, print=None)


if __name__ == "__main__":
    main()
