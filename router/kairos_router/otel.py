"""Spans through OpenTelemetry, exported over OTLP/HTTP; imported only with --enable-trace (extra `trace`)."""

import asyncio
import logging
import os
from collections.abc import Mapping
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kairos_router.tracing import CONTEXT_HEADERS, Attributes

_LOG = logging.getLogger(__name__)
_W3C = TraceContextTextMapPropagator()
_CLOSE_LIMIT_S = 5.0


class OtelSpan:
    """A tracing.Span."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self._span = tracer, span

    def child(self, name: str, attributes: Attributes) -> "OtelSpan":
        parent = set_span_in_context(self._span, Context())
        return OtelSpan(self._tracer, self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes))

    def carry(self, headers: dict[str, str]) -> None:
        for name in CONTEXT_HEADERS:
            headers.pop(name, None)
        _W3C.inject(headers, set_span_in_context(self._span, Context()))

    def end(self, attributes: Attributes, error: str = "") -> None:
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class OtelTracer:
    """A tracing.Tracer; the provider is its own, not the process-wide one."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("kairos_router")

    def request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> OtelSpan:
        parent = _W3C.extract({each: headers[each] for each in CONTEXT_HEADERS if each in headers}, Context())
        return OtelSpan(self._tracer, self._tracer.start_span(name, parent, SpanKind.SERVER, attributes))

    async def close(self) -> None:
        """Export what is left, within a limit: a collector that is down must not hold up the end."""
        # A thread that dies with the process: the exporter may still be trying again when the time is up.
        worker = Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        worker.start()
        await asyncio.to_thread(worker.join, _CLOSE_LIMIT_S)
        if worker.is_alive():
            _LOG.warning("the last spans were not exported within %g s", _CLOSE_LIMIT_S)


def open_tracer(endpoint: str) -> OtelTracer:
    """Export to `endpoint` in batches; sampler, limits and headers come from OTEL_* variables, as everywhere."""
    service = os.environ.get("OTEL_SERVICE_NAME") or "kairos-router"
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return OtelTracer(provider)
