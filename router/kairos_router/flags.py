"""The table of `kairos router` flags: parser, environment, settings file and reference page all read it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kairos_router import flag_values as values
from kairos_router.flag_values import Parse
from vllm_kairos.core.policies.registry import router_spec


class Shape(StrEnum):
    """How often a flag may be given and how many values follow it."""

    ONE = "one"
    SWITCH = "switch"
    LIST = "list"  # values follow in a row
    REPEATED = "repeated"  # the flag is given again for each value
    PREFILL = "prefill"  # repeated, each URL [BOOTSTRAP|none]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. Its settings-file key is the name without dashes in front, its variable KAIROS_ROUTER_<NAME>."""

    name: str
    group: str
    help: str
    parse: Parse = values.text
    default: Any = None
    shape: Shape = Shape.ONE
    aliases: tuple[str, ...] = ()
    metavar: str = "VALUE"

    @property
    def field(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        return f"KAIROS_ROUTER_{self.field.upper()}"


_CACHE = "this router keeps no prefix cache map"
_HASH = "this router keeps no session table; consistent_hash keeps a session on its servers without one"
_node_choice = values.choice(
    "kairos",
    "round_robin",
    "random",
    "power_of_two",
    "consistent_hash",
    refused={"cache_aware": _CACHE, "kv_aware": _CACHE, "sticky_least_loaded": _HASH},
)
_connector = values.choice(
    "nixl",
    refused={
        "mooncake": "its push-based hand-over needs a bootstrap exchange that this router does not speak",
        "moriio": "its hand-over needs a handshake that this router does not speak",
    },
)
_count, _positive, _seconds, _ms = (
    values.integer(0),
    values.integer(1),
    values.number(0, above=True),
    values.number(0, above=True),
)
_port = values.integer(0, 65535)

# fmt: off
# A table: two lines a flag read better than one argument a line.
FLAGS: tuple[Flag, ...] = (
    # workers
    Flag(name="--prefill", group="workers", shape=Shape.PREFILL, parse=values.prefill, default=(), metavar="URL",
         help="prefill server URL and optional bootstrap port; repeat for each"),
    Flag(name="--decode", group="workers", shape=Shape.REPEATED, parse=values.worker_url, default=(), metavar="URL",
         help="decode server URL; repeat for each"),
    Flag(name="--prefiller-hosts", aliases=("--prefiller-host",), group="workers", shape=Shape.LIST, default=(),
         metavar="HOST", help="prefill hosts, as vLLM's toy proxy takes them"),
    Flag(name="--prefiller-ports", aliases=("--prefiller-port",), group="workers", shape=Shape.LIST, default=(),
         parse=values.integer(1, 65535), metavar="PORT", help="prefill ports, one for each host"),
    Flag(name="--decoder-hosts", aliases=("--decoder-host",), group="workers", shape=Shape.LIST, default=(),
         metavar="HOST", help="decode hosts, as vLLM's toy proxy takes them"),
    Flag(name="--decoder-ports", aliases=("--decoder-port",), group="workers", shape=Shape.LIST, default=(),
         parse=values.integer(1, 65535), metavar="PORT", help="decode ports, one for each host"),
    Flag(name="--vllm-pd-disaggregation", group="workers", shape=Shape.SWITCH, default=False, parse=values.switch,
         help="accepted for vllm-router command lines; this router is always disaggregated"),
    Flag(name="--kv-connector", group="workers", parse=_connector, default="nixl", metavar="NAME",
         help="KV connector of the servers"),
    Flag(name="--worker-startup-timeout-secs", group="workers", parse=_seconds, default=600.0, metavar="SECONDS",
         help="how long to wait for the servers to become healthy at start-up"),
    Flag(name="--worker-startup-check-interval", group="workers", parse=_seconds, default=1.0, metavar="SECONDS",
         help="time between two checks of a server that is starting"),
    # serving
    Flag(name="--host", group="serving", default="127.0.0.1", metavar="HOST", help="address to listen on"),
    Flag(name="--port", group="serving", parse=_port, default=30000, metavar="PORT", help="port to listen on"),
    Flag(name="--api-key", group="serving", metavar="KEY",
         help="sent to servers where a client sent no Authorization, and asked of callers of the worker routes, not of /v1"),
    Flag(name="--api-key-validation-urls", group="serving", shape=Shape.LIST, parse=values.web_url, default=(), metavar="URL",
         help="URLs that say whether a client's bearer key is good, by a 2xx to a GET with it; one yes is enough; without "
              "any, servers check keys; with --api-key, servers get that key instead of the client's"),
    Flag(name="--request-id-headers", group="serving", shape=Shape.LIST, parse=values.header_name, metavar="HEADER",
         default=("x-request-id", "x-correlation-id", "x-trace-id", "request-id"),
         help="headers searched for the client's request id, in order"),
    Flag(name="--request-timeout-secs", group="serving", parse=_seconds, default=1800.0, metavar="SECONDS",
         help="limit of one request, all legs together"),
    Flag(name="--max-payload-size", group="serving", parse=_positive, default=512 * 1024 * 1024, metavar="BYTES",
         help="largest request body"),
    Flag(name="--max-concurrent-requests", group="serving", parse=_positive, default=32768, metavar="N",
         help="requests served at once; more wait in the queue"),
    Flag(name="--queue-size", group="serving", parse=_count, default=100, metavar="N",
         help="requests that may wait; 0 answers 429 at once"),
    Flag(name="--queue-timeout-secs", group="serving", parse=_seconds, default=60.0, metavar="SECONDS",
         help="longest wait in the queue before 408"),
    Flag(name="--rate-limit-tokens-per-second", group="serving", parse=values.number(0, above=True), metavar="N",
         help="requests admitted per second, one bucket token each; not limited unless given"),
    Flag(name="--cors-allowed-origins", group="serving", shape=Shape.LIST, default=(), metavar="ORIGIN",
         help="origins that browsers may call from"),
    Flag(name="--drain-timeout-secs", group="serving", parse=values.number(0), default=30.0, metavar="SECONDS",
         help="on SIGTERM, how long running requests may still take; then streams end with an error event, others with a 503"),
    # deflection
    Flag(name="--deflect-policy", group="deflection", parse=router_spec, metavar="POLICY",
         help="never, always, static-length:N (alias threshold:N), static-queue:N, dynamo-isl[:TOKENS[:RATIO]], "
              "dynamo-load[:FRACTION], llmd-noncached[:TOKENS], kairos (alias predictive) or crossflow (as kairos, "
              "but as much as the decode nodes' leases cover); "
              "unless given: kairos with a profile, never without"),
    Flag(name="--profile", group="deflection", parse=values.path, metavar="FILE",
         help="latency profile of both roles, written by `kairos profile`"),
    Flag(name="--prefill-profile", group="deflection", parse=values.path, metavar="FILE",
         help="latency profile of the prefill servers where it differs"),
    Flag(name="--decode-profile", group="deflection", parse=values.path, metavar="FILE",
         help="latency profile of the decode servers where it differs"),
    Flag(name="--deflect-alpha", group="deflection", parse=values.number(1), default=1.3, metavar="RATIO",
         help="deflect a prompt later than the prefill path by up to this, less 1, times the prefill queue's wait"),
    Flag(name="--deflect-beta", group="deflection", parse=values.number(0, 1, above=True), default=0.9, metavar="RATIO",
         help="share of the TBT objective that a predicted step may fill"),
    Flag(name="--deflect-chunk-candidates", group="deflection", shape=Shape.LIST, parse=_positive, metavar="TOKENS",
         default=(2048, 1024, 512, 256, 128, 64), help="batch sizes a deflected prompt may run in"),
    Flag(name="--deflect-slot-share", group="deflection", parse=values.number(0, 1, above=True), default=0.9, metavar="RATIO",
         help="share of the requests it may run from which on a decode node takes no deflected prompt"),
    Flag(name="--deflect-per-node", group="deflection", parse=_positive, default=1, metavar="PROMPTS",
         help="deflected prompts that a decode node may have at a time, one behind the other"),
    Flag(name="--deflect-static-chunk", group="deflection", parse=_positive, default=128, metavar="TOKENS",
         help="chunk of the policies that make no prediction"),
    Flag(name="--deflect-unplanned-chunk", group="deflection", parse=_positive, default=512, metavar="TOKENS",
         help="the decode servers' default_chunk_tokens, which prices what is queued there"),
    Flag(name="--ttft-slo-ms", aliases=("--ttft-slo",), group="deflection", parse=_ms, default=4000.0, metavar="MS",
         help="time to first token objective; a request's own header overrides it"),
    Flag(name="--tbt-slo-ms", aliases=("--tpot-slo", "--tbt-slo"), group="deflection", parse=_ms, default=70.0, metavar="MS",
         help="time between tokens objective; a request's own header overrides it"),
    Flag(name="--prefill-unavailable", group="deflection", default="deflect-bounded", metavar="RULE",
         parse=values.choice("fail", "deflect-bounded", "deflect"),
         help="with no prefill server left: fail, deflect what is TBT-safe, or deflect everything"),
    Flag(name="--link-bandwidth-mb-per-sec", group="deflection", parse=values.number(0, above=True), default=10000.0,
         metavar="MB", help="KV bandwidth assumed for a pair of servers until a transfer was measured"),
    Flag(name="--allow-force-local", group="deflection", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="honour the header x-bypass-remote-prefill and the body field do_local_prefill"),
    Flag(name="--policy", group="deflection", parse=_node_choice, default="kairos", metavar="NAME",
         help="choice among servers of one role: kairos, round_robin, random, power_of_two, or consistent_hash (a session's "
              "requests stay on one server while it has room; those without a session key go as with kairos)"),
    Flag(name="--prefill-policy", group="deflection", parse=_node_choice, metavar="NAME",
         help="the same for prefill servers alone"),
    Flag(name="--decode-policy", group="deflection", parse=_node_choice, metavar="NAME",
         help="the same for decode servers alone"),
    Flag(name="--kv-lease-secs", group="deflection", parse=_seconds, default=30.0, metavar="SECONDS",
         help="how long a prefill server keeps KV for the decode server"),
    Flag(name="--kv-lease-margin-secs", group="deflection", parse=values.number(0), default=2.0, metavar="SECONDS",
         help="KV that is within this of its lease's end is not pulled any more"),
    # node state
    Flag(name="--state-endpoint", group="node state", shape=Shape.REPEATED, parse=values.state_endpoint, default=(),
         metavar="NODE=ADDR", help="ZMQ address of a server's state, by name or URL; asked of GET /kairos/node unless given"),
    Flag(name="--state-key-file", group="node state", parse=values.path, metavar="FILE",
         help="shared key; state that is not signed with it is dropped"),
    Flag(name="--state-stale-after-ms", group="node state", parse=_ms, default=500.0, metavar="MS",
         help="age at which a server's state counts as stale"),
    # prompt tokens
    Flag(name="--tokenizer", group="prompt tokens", parse=values.path, metavar="DIR",
         help="the model's directory with tokenizer.json and the chat template; estimated from bytes unless given"),
    Flag(name="--bytes-per-token", group="prompt tokens", parse=values.number(0.5, 16), default=4.0, metavar="RATIO",
         help="first guess of the estimate; corrected from the usage that servers report"),
    # health, retries, breaker
    Flag(name="--health-check-endpoint", group="health", parse=values.route, default="/health", metavar="PATH",
         help="path asked for health"),
    Flag(name="--health-check-interval-secs", group="health", parse=_seconds, default=60.0, metavar="SECONDS",
         help="time between two checks of one server"),
    Flag(name="--health-check-timeout-secs", group="health", parse=_seconds, default=5.0, metavar="SECONDS",
         help="limit of one check"),
    Flag(name="--health-failure-threshold", group="health", parse=_positive, default=3, metavar="N",
         help="failed checks in a row until a server is unhealthy"),
    Flag(name="--health-success-threshold", group="health", parse=_positive, default=2, metavar="N",
         help="passed checks in a row until it is healthy again"),
    Flag(name="--retry-max-retries", group="retries", parse=_count, default=5, metavar="N",
         help="retries of one request, both legs together"),
    Flag(name="--retry-initial-backoff-ms", group="retries", parse=values.number(0), default=50.0, metavar="MS",
         help="wait before the first retry"),
    Flag(name="--retry-max-backoff-ms", group="retries", parse=values.number(0), default=30000.0, metavar="MS",
         help="longest wait before a retry"),
    Flag(name="--retry-backoff-multiplier", group="retries", parse=values.number(1), default=1.5, metavar="RATIO",
         help="growth of the wait from retry to retry"),
    Flag(name="--retry-jitter-factor", group="retries", parse=values.number(0, 1), default=0.2, metavar="RATIO",
         help="share by which each wait is varied at random"),
    Flag(name="--disable-retries", group="retries", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="send each leg once"),
    Flag(name="--cb-failure-threshold", group="circuit breaker", parse=_positive, default=10, metavar="N",
         help="failures within the window that take a server out"),
    Flag(name="--cb-success-threshold", group="circuit breaker", parse=_positive, default=3, metavar="N",
         help="successes in a row that bring it back"),
    Flag(name="--cb-timeout-duration-secs", group="circuit breaker", parse=_seconds, default=60.0, metavar="SECONDS",
         help="time until a trial request goes to it"),
    Flag(name="--cb-window-duration-secs", group="circuit breaker", parse=_seconds, default=120.0, metavar="SECONDS",
         help="window in which failures count"),
    Flag(name="--disable-circuit-breaker", group="circuit breaker", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="never take a server out for failed requests"),
    # observability
    Flag(name="--prometheus-host", group="observability", default="127.0.0.1", metavar="HOST",
         help="address of the metrics port"),
    Flag(name="--prometheus-port", group="observability", parse=_port, default=29000, metavar="PORT",
         help="metrics port; /metrics is also served on the main port"),
    Flag(name="--compat-metrics", group="observability", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="also emit vllm_router_* metrics where they mean the same"),
    Flag(name="--decision-headers", group="observability", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="answer with headers that say route, reason, servers and both predictions"),
    Flag(name="--enable-trace", group="observability", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="export OpenTelemetry spans, one per request and one per leg (needs the extra `trace`)"),
    Flag(name="--otlp-traces-endpoint", group="observability", parse=values.traces_endpoint, metavar="URL",
         default="http://localhost:4318/v1/traces", help="OTLP/HTTP collector, HOST:PORT or URL; used with --enable-trace"),
    Flag(name="--log-level", group="observability", default="info", metavar="LEVEL",
         parse=values.choice("debug", "info", "warning", "error", "critical"), help="log level"),
    Flag(name="--log-dir", group="observability", parse=values.path, metavar="DIR",
         help="write router.log and access.jsonl there, not to standard output"),
    Flag(name="--disable-access-log", group="observability", shape=Shape.SWITCH, parse=values.switch, default=False,
         help="write no line per request"),
)
# fmt: on

_KUBERNETES = "finding servers through Kubernetes is not supported; name them with --prefill and --decode"
_EVENTS = "KV events are not read; both paths are priced without prefix caches"
_PLAIN_MODE = "this router is for prefill/decode servers; name them with --prefill and --decode"
_PREFIX = "it belongs to a cache-aware policy, which this router does not have"

REFUSED: dict[str, str] = {
    "--service-discovery": _KUBERNETES,
    "--service-discovery-port": _KUBERNETES,
    "--service-discovery-namespace": _KUBERNETES,
    "--selector": _KUBERNETES,
    "--prefill-selector": _KUBERNETES,
    "--decode-selector": _KUBERNETES,
    "--vllm-discovery-address": "servers do not register themselves; name them with --prefill and --decode",
    "--pd-kv-events": _EVENTS,
    "--kv-event-source": _EVENTS,
    "--kv-event-replay-source": _EVENTS,
    "--kv-event-block-size": _EVENTS,
    "--kv-event-model": _EVENTS,
    "--router-temperature": _PREFIX,
    "--kv-penalty-host": _PREFIX,
    "--kv-penalty-external": _PREFIX,
    "--kv-penalty-disk": _PREFIX,
    "--kv-aware-session-affinity-ttl-secs": _PREFIX,
    "--cache-threshold": _PREFIX,
    "--balance-abs-threshold": _PREFIX,
    "--balance-rel-threshold": _PREFIX,
    "--eviction-interval-secs": _PREFIX,
    "--max-tree-size": _PREFIX,
    "--worker-urls": _PLAIN_MODE,
    "--mini-lb": _PLAIN_MODE,
    "--enable-igw": _PLAIN_MODE,
    "--intra-node-data-parallel-size": "the data-parallel size is read from each server's GET /kairos/node",
    "--wasm-middleware": "this router runs no WASM",
    "--wasm-middleware-sha256": "this router runs no WASM",
    "--wasm-middleware-route": "this router runs no WASM",
    "--enable-program-scheduling": "this router has no program-level scheduling",
    "--program-scheduling-config-json": "this router has no program-level scheduling",
}
"""Flags of neighbouring routers that we know and do not take, with the reason."""
