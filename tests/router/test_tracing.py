"""Spans: one per request, one per leg, continued from the client and by the servers; nothing at all when off."""

import asyncio
import subprocess
import sys

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from kairos_router import serve
from kairos_router.otel import OtelTracer, open_tracer
from kairos_router.tracing import of_decision
from tests.router.cluster import Cluster, cluster, until
from tests.router.stubs import Received, Reply, decode_server, in_turn, prefilled, running, status
from vllm_kairos.core.decision import Reject, RejectReason
from vllm_kairos.errors import ConfigError

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


def in_memory() -> tuple[OtelTracer, InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelTracer(provider), exporter


async def spans_of(up: Cluster, exporter: InMemorySpanExporter) -> tuple[ReadableSpan, dict[str, ReadableSpan]]:
    """The server span and the others by name, once the request is accounted for."""
    await until(lambda: any(span.kind is SpanKind.SERVER for span in exporter.get_finished_spans()))
    server, *more = (span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
    assert not more
    legs = [span for span in exporter.get_finished_spans() if span is not server]
    assert all(leg.parent.span_id == server.context.span_id for leg in legs)
    assert {span.context.trace_id for span in legs} <= {server.context.trace_id}
    return server, {leg.name: leg for leg in legs}


def carried(received: Received) -> list[str]:
    """Trace and parent ids that a server was sent."""
    return received.headers["traceparent"].split("-")[1:3]


def ids(span: ReadableSpan) -> list[str]:
    return [format_trace_id(span.context.trace_id), format_span_id(span.context.span_id)]


async def test_a_request_continues_the_clients_trace_and_each_leg_its_own_span():
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer) as up:
        sent = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
        await up.post("/v1/completions", {"model": "m", "prompt": "hi"}, **sent)
        server, legs = await spans_of(up, exporter)
        assert (server.name, server.status.status_code) == ("POST /v1/completions", StatusCode.UNSET)
        assert (format_trace_id(server.context.trace_id), format_span_id(server.parent.span_id)) == (TRACE_ID, PARENT_ID)
        assert set(legs) == {"prefill", "decode"}
        for name, stub in (("prefill", up.prefill[0]), ("decode", up.decode[0])):
            assert carried(stub.received[0]) == ids(legs[name])
            assert stub.received[0].headers["tracestate"] == "vendor=1"
            assert legs[name].attributes["kairos.worker"] == stub.name
            assert legs[name].attributes["kairos.outcome"] == "ok"


async def test_the_span_says_what_was_decided_and_why():
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer) as up:
        await up.complete()
        said = (await spans_of(up, exporter))[0].attributes
        assert (said["kairos.route"], said["kairos.reason"]) == ("prefill-decode", "prefill-sooner")
        assert (said["kairos.predicted_ttft_remote_s"], said["kairos.predicted_ttft_local_s"]) == (0.2, 0.4)
        assert (said["kairos.prefill_node"], said["kairos.decode_node"]) == (up.prefill[0].name, up.decode[0].name)
        assert (said["http.response.status_code"], said["gen_ai.request.model"]) == (200, "m")
        assert "error.type" not in said


@pytest.mark.parametrize("given", ["", "not a context", f"00-{'0' * 32}-{PARENT_ID}-01"])
async def test_a_client_without_a_valid_context_begins_a_new_trace(given):
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer) as up:
        await up.post("/v1/completions", {"model": "m", "prompt": "hi"}, traceparent=given, tracestate="stale=1")
        server, legs = await spans_of(up, exporter)
        assert server.parent is None
        assert carried(up.decode[0].received[0]) == ids(legs["decode"])
        assert "tracestate" not in up.decode[0].received[0].headers


async def test_failed_legs_and_failed_requests_are_marked():
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer, decode=[in_turn(status(503), decode_server)]) as up:
        assert (await up.complete())[0] == 200
        await until(lambda: len(exporter.get_finished_spans()) >= 4)
        decodes = [span for span in exporter.get_finished_spans() if span.name == "decode"]
        assert [leg.attributes["kairos.outcome"] for leg in decodes] == ["unavailable", "ok"]
        assert [leg.status.status_code for leg in decodes] == [StatusCode.ERROR, StatusCode.UNSET]
        assert [leg.attributes["kairos.attempt"] for leg in decodes] == [1, 2]
        exporter.clear()
        up.parts.workers.drain(up.decode[0].name)
        assert (await up.complete())[0] == 503
        server, legs = await spans_of(up, exporter)
        assert (server.status.status_code, server.attributes["error.type"]) == (StatusCode.ERROR, "no-decode-node")
        assert legs == {}


async def test_other_paths_are_traced_by_their_template():
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer) as up:
        await up.post("/v1/secret-name", {})
        server, legs = await spans_of(up, exporter)
        assert (server.name, list(legs)) == ("POST other", ["decode"])
        assert carried(up.decode[0].received[0]) == ids(legs["decode"])


async def test_a_client_that_leaves_ends_its_spans():
    tracer, exporter = in_memory()
    async with cluster(tracer=tracer, decode=[lambda received: Reply(gate=asyncio.Event())]) as up:
        request = asyncio.create_task(up.complete())
        await up.decode[0].until(lambda stub: stub.active == 1)
        request.cancel()
        server, legs = await spans_of(up, exporter)
        assert (server.attributes["http.response.status_code"], server.attributes["error.type"]) == (499, "client-gone")
        assert legs["decode"].attributes["kairos.outcome"] == "cancelled"


def test_a_refusal_is_told_without_nodes():
    assert of_decision(Reject(reason=RejectReason.NO_DECODE_NODE)) == {
        "kairos.route": "reject",
        "kairos.reason": "no-decode-node",
    }
    assert of_decision(None) == {}


async def test_what_is_left_is_exported_at_the_end():
    async with running(lambda received: Reply()) as collector:
        tracer = open_tracer(f"{collector.url}/v1/traces")
        async with cluster(tracer=tracer, prefill=[lambda received: prefilled()]) as up:
            await up.complete()
            await until(lambda: up.metric("kairos_router_requests_active") == 0)
        await tracer.close()
        assert [one.path for one in collector.received] == ["/v1/traces"]
        (resource,) = ExportTraceServiceRequest.FromString(collector.received[0].raw).resource_spans
        names = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert names["service.name"] == "kairos-router"
        spans = [span.name for scope in resource.scope_spans for span in scope.spans]
        assert sorted(spans) == ["POST /v1/completions", "decode", "prefill"]


def test_without_the_packages_one_line_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "kairos_router.otel", None)
    monkeypatch.delattr("kairos_router.otel", raising=False)
    with pytest.raises(
        ConfigError, match=r"--enable-trace needs the extra `trace`: pip install 'vllm-kairos\[trace\]'"
    ) as refused:
        serve.open_tracer("http://localhost:4318/v1/traces")
    assert "\n" not in str(refused.value)


async def test_off_forwards_the_clients_context():
    async with cluster() as up:
        await up.post("/v1/completions", {"model": "m", "prompt": "hi"}, traceparent=TRACEPARENT)
        assert carried(up.decode[0].received[0]) == [TRACE_ID, PARENT_ID]


def test_off_imports_nothing():
    code = "import sys, kairos_router.serve; print(*[name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
