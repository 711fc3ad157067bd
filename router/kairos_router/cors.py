"""Cross-origin headers for browsers, where the operator allows origins."""

from aiohttp import web

_ALLOWED = {
    "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
    "access-control-allow-headers": "*",
    "access-control-max-age": "600",
}


def allow(app: web.Application, origins: tuple[str, ...]) -> None:
    """Answer preflights and mark responses for `origins`; "*" allows every one. Nothing for an empty tuple."""
    if not origins:
        return

    async def mark(request: web.Request, response: web.StreamResponse) -> None:
        origin = request.headers.get("origin")
        if origin is not None and ("*" in origins or origin in origins):
            response.headers["access-control-allow-origin"] = origin
            response.headers["vary"] = "origin"

    async def preflight(_request: web.Request) -> web.Response:
        return web.Response(status=204, headers=_ALLOWED)

    app.on_response_prepare.append(mark)
    app.router.add_route("OPTIONS", "/{path:.*}", preflight)
