"""What stand-ins for the toy proxy share: its command line, its health route, and a stream of events."""

import argparse
import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web


def serve(events: Callable[[dict[str, Any]], Iterable[bytes]], *, pause_s: float = 0.0) -> None:
    """Answer completions with the events of their body, `pause_s` after each, until ended."""

    async def complete(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        body = await request.json()
        await answer.prepare(request)
        for event in events(body):
            await answer.write(b"data: " + event + b"\n\n")
            if pause_s:
                await asyncio.sleep(pause_s)
        await answer.write(b"data: [DONE]\n\n")
        return answer

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response()

    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args()
    app = web.Application()
    app.add_routes([web.get("/healthcheck", healthy), web.post("/v1/completions", complete)])
    web.run_app(app, host=args.host, port=args.port, print=None, shutdown_timeout=5.0)
