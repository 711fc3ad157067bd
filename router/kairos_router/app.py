"""Routes: which path is served by what, and how an error becomes a status."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from kairos_router import headers
from kairos_router.admission import Admission
from kairos_router.drain import Drain
from kairos_router.job import Incoming, Sink, Story
from kairos_router.key_check import KeyCheck
from kairos_router.ledger import CLIENT_GONE, Ledger
from kairos_router.passthrough import Passthrough
from kairos_router.payload import Endpoint
from kairos_router.plain_request import PlainHead
from kairos_router.refusal import Refusal
from kairos_router.router import Router
from kairos_router.sse import error_event
from kairos_router.web_sink import WebSink
from vllm_kairos.errors import RequestError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Incoming, Story, Sink], Awaitable[None]]
Read = Callable[[], Awaitable[Incoming]]

PASSED_PATHS = frozenset(
    {"/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/models", "/tokenize", "/inference/v1/generate"}
)
_OTHER = "other"


class ClientSink(Sink, Protocol):
    """A sink that says how the client was answered."""

    @property
    def status(self) -> int:
        """The status that went to the client."""


class Front:
    """Takes a client's request to `serve` and its answer, or its error, back."""

    def __init__(
        self,
        *,
        router: Router,
        passthrough: Passthrough,
        admission: Admission,
        ledger: Ledger,
        drain: Drain,
        keys: KeyCheck | None,  # None: servers check their clients' keys
        replace_key: bool,  # servers get the router's key: the client's was meant for the router
        request_id_headers: tuple[str, ...],
        body_timeout_s: float,
    ) -> None:
        self._router = router
        self._passthrough = passthrough
        self._admission = admission
        self._ledger = ledger
        self._drain = drain
        self._keys = keys
        self._replace_key = keys is not None and replace_key
        self._request_id_headers = request_id_headers
        self._body_timeout_s = body_timeout_s

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """The endpoints that may take two legs."""
        return await self._serve(request, request.path, request.path, self._router.complete)

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """Every other path."""
        template = request.path if request.path in PASSED_PATHS else _OTHER
        return await self._serve(request, request.rel_url.raw_path, template, self._passthrough.forward)

    async def _serve(self, request: web.Request, path: str, template: str, serve: Serve) -> web.StreamResponse:
        request_id = headers.request_id(request.headers, self._request_id_headers)
        story = self._ledger.open(template, request_id, method=request.method, headers=request.headers)
        sink = WebSink(request)
        authorization = request.headers.get("authorization", "")
        await self._tell(story, sink, authorization, lambda: self._incoming(request, path, request_id), serve)
        return sink.response or web.Response(status=sink.status)

    async def take(self, head: PlainHead, body: bytes, sink: ClientSink) -> None:
        """The same endpoints as `complete`, for a request that did not come through aiohttp."""
        sent = head.headers
        request_id = headers.request_id(sent, self._request_id_headers)
        story = self._ledger.open(head.path, request_id, headers=sent)
        authorization = sent.get("authorization", "")
        if self._replace_key:
            sent = {name: value for name, value in sent.items() if name != "authorization"}
        incoming = Incoming(path=head.path, headers=sent, body=body, request_id=request_id)

        async def at_hand() -> Incoming:
            return incoming

        await self._tell(story, sink, authorization, at_hand, self._router.complete)

    async def _tell(self, story: Story, sink: ClientSink, authorization: str, read: Read, serve: Serve) -> None:
        status = 500  # of an error that nobody foresaw
        try:
            await self._answer(story, sink, authorization, read, serve)
            status = sink.status
        except (asyncio.CancelledError, ConnectionError):
            if story.answered:  # many clients close at [DONE] and do not wait for the end of the body
                status = sink.status
            else:
                status, story.error = CLIENT_GONE, story.error or "client-gone"
            raise
        finally:
            self._ledger.close(story, status)

    async def _answer(self, story: Story, sink: ClientSink, authorization: str, read: Read, serve: Serve) -> None:
        try:
            with self._drain.request():
                if self._keys is not None:
                    await self._keys.check(authorization)
                incoming = await read()
                await self._admission.acquire()
                try:
                    await serve(incoming, story, sink)
                finally:
                    self._admission.release()
        except Refusal as refused:  # once a stream has begun, only a CutOff: nothing else can be refused then
            await (self._end_stream if sink.started else self._refuse)(refused, story, sink)
        except RequestError as error:
            await self._refuse(Refusal(400, "invalid-request", str(error)), story, sink)
        except RecursionError:
            await self._refuse(Refusal(400, "invalid-request", "request body is nested too deeply"), story, sink)

    async def _incoming(self, request: web.Request, path: str, request_id: str) -> Incoming:
        body = await self._body(request)
        sent = {name.lower(): value for name, value in request.headers.items()}
        if self._replace_key:
            sent.pop("authorization", None)
        return Incoming(
            path=path,
            headers=sent,
            body=body,
            request_id=request_id,
            method=request.method,
            query=request.rel_url.raw_query_string,
        )

    async def _body(self, request: web.Request) -> bytes:
        if request.content.is_eof():
            return await _read(request)  # all of it came with the headers: nothing to wait for, no timer to set
        try:
            async with asyncio.timeout(self._body_timeout_s):
                return await _read(request)
        except TimeoutError:
            raise Refusal(408, "body-timeout", f"request body took longer than {self._body_timeout_s:g} s") from None

    async def _end_stream(self, cut: Refusal, story: Story, sink: ClientSink) -> None:
        story.error = cut.reason
        await sink.abort(error_event(str(cut), cut.kind, cut.status))

    async def _refuse(self, refused: Refusal, story: Story, sink: ClientSink) -> None:
        story.error = refused.reason
        await sink.whole(refused.status, {**refused.headers, headers.REQUEST_ID: story.request_id}, refused.body)


def add_routes(app: web.Application, front: Front) -> None:
    """Serve what clients use; the operator's routes are added before, since the last route takes every path."""
    for endpoint in Endpoint:
        app.router.add_post(endpoint, front.complete)
    app.router.add_route("*", "/{path:.*}", front.pass_on)


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refusal(413, "body-too-large", "request body is larger than --max-payload-size") from error
    except web.RequestPayloadError as error:
        raise RequestError(f"request body cannot be read: {' '.join(str(error).split())}") from error
