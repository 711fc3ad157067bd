"""Every other path: handed to one decode server as it came, never to a prefill server.

Endpoints whose output limit lives elsewhere (/v1/responses, /v1/messages, /inference/v1/generate) would
run to that limit on a prefill server, so decode servers run them whole. What a server remembers of a
client (`store`, `previous_response_id`) stays reachable: requests that may touch it go to one server,
the first decode server by name.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from kairos_router import answers, failures, headers, payload, tracing
from kairos_router.breaker import Breakers
from kairos_router.failures import Leg
from kairos_router.job import Incoming, Sink, Story
from kairos_router.metrics import RouterMetrics
from kairos_router.placement import Placement
from kairos_router.refusal import Refusal
from kairos_router.registry import Worker
from kairos_router.relay import is_stream
from kairos_router.slo import Objectives, objectives
from kairos_router.sse import StreamScanner, error_event
from kairos_router.tracing import Span
from kairos_router.upstream import Answer, Call, Upstream, UpstreamFailure

_LOG = logging.getLogger(__name__)
STATEFUL_PREFIXES = ("/v1/responses",)
XARGS_PATHS = frozenset({"/v1/responses", "/v1/messages"})
"""Where vLLM 0.30 to 0.32 read `vllm_xargs`, beside the endpoints that may take two legs."""

_NO_DEFAULT = Objectives(ttft_s=0.0, tbt_s=0.0)  # nothing is decided here


class Passthrough:
    """One call to one decode server; nothing is retried, since nothing is known of what the path does."""

    def __init__(
        self,
        *,
        upstream: Upstream,
        placement: Placement,
        breakers: Breakers,
        metrics: RouterMetrics,
        clock: Callable[[], float],
        request_timeout_s: float,
        api_key: str | None = None,
    ) -> None:
        self._upstream = upstream
        self._placement = placement
        self._breakers = breakers
        self._metrics = metrics
        self._clock = clock
        self._request_timeout_s = request_timeout_s
        self._api_key = api_key

    async def forward(self, incoming: Incoming, story: Story, sink: Sink) -> None:
        """Answer one request through `sink`; raises Refusal or RequestError when nothing was sent."""
        body = _body(incoming)
        worker = self._placement.pick_decode(stateful=incoming.path.startswith(STATEFUL_PREFIXES))
        if worker is None:
            raise Refusal(503, "no-decode-node", "no decode server takes requests", retry_after_s=1.0)
        started_s, outcome = self._clock(), "cancelled"
        self._metrics.leg_started(Leg.DECODE, worker)
        span = tracing.leg_span(story.span, Leg.DECODE, worker.name, worker.url, attempt=1)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                await self._call(incoming, body, story, sink, worker, span)
            outcome = "ok"
        except UpstreamFailure as failure:
            outcome = str(failure.failure)
            await self._failed(failure, worker, story, sink)
        except TimeoutError:
            story.error = "request-timeout"
            if not sink.started:
                raise Refusal(504, story.error, f"request took longer than {self._request_timeout_s:g} s") from None
            await sink.abort(error_event("request timeout", "GatewayTimeout", 504))
        finally:
            self._metrics.leg_finished(Leg.DECODE, worker, self._clock() - started_s, outcome)
            if span is not None:
                tracing.end_leg(span, outcome)

    async def _call(self, incoming: Incoming, body: bytes, story: Story, sink: Sink, worker: Worker, span: Span | None) -> None:
        leg_id = headers.leg_id(incoming.request_id, headers.new_unique(), Leg.DECODE, 1)
        sent = headers.leg_headers(incoming.headers, leg_id=leg_id, dp_rank=None, api_key=self._api_key)
        if span is not None:
            span.carry(sent)
        url = f"{worker.url}{incoming.path}{'?' if incoming.query else ''}{incoming.query}"
        async with self._upstream.send(Call(url=url, headers=sent, body=body, method=incoming.method)) as answer:
            self._tell_breaker(answer.status, worker)
            await self._relay(answer, story, sink)

    async def _relay(self, answer: Answer, story: Story, sink: Sink) -> None:
        given = headers.client_headers(answer.headers, request_id=story.request_id)
        if not is_stream(answer.headers):
            await sink.whole(answer.status, given, answers.strip_kv_params(await answer.read()))
            return
        story.streamed = True
        await sink.start(answer.status, given)
        async with aclosing(_scanned(answer)) as clean:
            async for data in clean:
                await sink.write(data)
        await sink.finish()

    async def _failed(self, failure: UpstreamFailure, worker: Worker, story: Story, sink: Sink) -> None:
        _LOG.warning("request %s: decode server %s: %s", story.request_id, worker.name, failure)
        story.error = f"decode-{failure.failure}"
        self._metrics.error(story.error)
        self._breakers.failure(worker.name, self._clock())
        if not sink.started:
            raise Refusal(502, story.error, f"the decode server failed: {failure.failure}", retry_after_s=1.0) from failure
        self._metrics.stream_error(worker)
        await sink.abort(error_event("the decode server broke off", "BadGateway", 502))

    def _tell_breaker(self, status: int, worker: Worker) -> None:
        failure = failures.of_status(status, leg=Leg.DECODE)
        if failure is not None and failures.rule(Leg.DECODE, failure).node_fault:
            self._breakers.failure(worker.name, self._clock())
        else:
            self._breakers.success(worker.name, self._clock())


def _body(incoming: Incoming) -> bytes:
    """What the decode server gets: the client's bytes, with what the SLO headers say where the server reads it."""
    body = payload.without_client_params(incoming.body)
    if incoming.method != "POST" or incoming.path not in XARGS_PATHS:
        return body
    told = objectives(incoming.headers, _NO_DEFAULT).for_engine
    return payload.body_with_xargs(body, told) if told else body


async def _scanned(answer: Answer) -> AsyncGenerator[bytes, None]:
    scanner = StreamScanner()
    while chunk := await answer.part():
        data = scanner.feed(chunk)
        if data:
            yield data
    rest = scanner.finish()
    if rest:
        yield rest
