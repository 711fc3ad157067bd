"""What the router counts, in Prometheus form: one method per event, our own prefix always."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from kairos_router.breaker import BreakerState
from kairos_router.compat_metrics import CompatMetrics
from kairos_router.failures import Failure, Leg
from kairos_router.registry import Worker
from kairos_router.tallies import CounterTally, GaugeTally, HistogramTally
from vllm_kairos.core.decision import Assign, Decision
from vllm_kairos.core.lease import LeaseGone
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.shapes import Route

CONTENT_TYPE = CONTENT_TYPE_LATEST
MAX_MODEL_NAMES = 1000
_NO_FAULTS = frozenset({"ok", "cancelled", Failure.LEASE_GONE})
MAX_LABEL_CHARS = 256

_TTFT_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 10, 20, 40, 80, 160)
_LEG_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800)
_ERROR_BUCKETS_S = (-10, -4, -2, -1, -0.5, -0.2, -0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 10)
_STEP_ERROR_BUCKETS_S = (-0.1, -0.05, -0.02, -0.01, -0.005, -0.002, 0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)


class BoundedLabel:
    """Lets the first `limit` values through and calls every later one, and any long one, "other"."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= self._limit or len(value) > MAX_LABEL_CHARS:
            return "other"
        self._seen.add(value)
        return value


class RouterMetrics:
    """All series of one router, in its own registry; `compat` adds the vllm_router_* names."""

    def __init__(self, *, compat: bool = False) -> None:
        self.registry = CollectorRegistry()
        self._model = BoundedLabel(MAX_MODEL_NAMES)
        self._compat = CompatMetrics(self.registry) if compat else None
        self._nodes: Callable[[], Iterable[NodeState]] = tuple
        self._now_s: Callable[[], float] = float
        self._make_request_series()
        self._make_prediction_series()
        self._make_worker_series()
        self._make_node_series()

    # requests

    def request_started(self, endpoint: str) -> None:
        """A client's request was admitted; `endpoint` is one of our own route templates, never a raw path."""
        self._active.inc()
        if self._compat:
            self._compat.request_started(endpoint)

    def request_finished(self, endpoint: str, status: int, route: Route | None, seconds: float) -> None:
        """A client's request ended with `status`; `route` None: none was chosen."""
        self._active.dec()
        self._requests.labels(endpoint, str(status)).inc()
        self._request_seconds.labels(route or "none").observe(seconds)
        if self._compat:
            self._compat.request_finished(endpoint, seconds)

    def queued(self, waiting: int) -> None:
        """`waiting` requests stand in the admission queue."""
        self._queue.set(waiting)

    def decision(self, decision: Decision, model: str) -> None:
        """A policy answered."""
        model = self._model(model)
        if isinstance(decision, Assign):
            self._decisions.labels(decision.route, str(decision.reason), model).inc()
            if self._compat:
                self._compat.decision(decision)
        else:
            self._rejections.labels(decision.reason, model).inc()

    def ttft(self, predicted_s: float | None, actual_s: float, route: Route) -> None:
        """The first token arrived `actual_s` after the request; `predicted_s` is what the decision expected."""
        self._ttft.labels(route).observe(actual_s)
        if predicted_s is not None:
            self._ttft_predicted.labels(route).observe(predicted_s)
            self._ttft_error.labels(route).observe(actual_s - predicted_s)

    def tokens_gap(self, seconds: float, route: Route) -> None:
        """One gap between two events of a stream that bring text; an event may carry several tokens."""
        self._tbt.labels(route).observe(seconds)

    def step_error(self, predicted_s: float, measured_s: float, node_id: str) -> None:
        """A node measured a step; `predicted_s` is what the profile says of its shape."""
        self._step_error.labels(node_id).observe(measured_s - predicted_s)

    def transfers_skipped(self, node_id: str, transfers: int, kv_bytes: int) -> None:
        """A node reports KV transfers that deflection made needless, since its last report."""
        self._transfers_skipped.labels(node_id).inc(transfers)
        self._bytes_skipped.labels(node_id).inc(kv_bytes)

    def malformed_schedules(self, node_id: str, count: int) -> None:
        """A node reports requests whose chunk schedule it could not use, since its last report."""
        self._malformed_schedules.labels(node_id).inc(count)

    def stranded_kv(self, cause: str) -> None:
        """A prefill server holds KV that no decode server will pull before its lease ends."""
        self._stranded.labels(cause).inc()

    def lease_gone(self, node_id: str, reason: str) -> None:
        """A decode node did not admit a deflected request under its lease; the request took another path."""
        self._leases_gone.labels(node_id, reason if reason in _LEASE_REASONS else "other").inc()

    def error(self, kind: str) -> None:
        """A request failed; `kind` is one of our own words."""
        self._errors.labels(kind).inc()
        if self._compat:
            self._compat.error(kind)

    # legs

    def leg_started(self, leg: Leg, worker: Worker) -> None:
        """A call to a server begins."""
        self._legs_active.labels(leg, worker.name).inc()
        if self._compat:
            self._compat.leg_started(leg, worker)

    def leg_finished(self, leg: Leg, worker: Worker, seconds: float, outcome: str) -> None:
        """A call to a server ended; `outcome` is "ok", "cancelled" or one of our failure words."""
        self._legs_active.labels(leg, worker.name).dec()
        self._leg_seconds.labels(leg, worker.name).observe(seconds)
        self._leg_outcomes.labels(leg, worker.name, outcome).inc()
        if self._compat:
            self._compat.leg_finished(leg, worker, failed=outcome not in _NO_FAULTS)

    def stream_error(self, worker: Worker) -> None:
        """A stream broke after bytes had gone to the client."""
        self._stream_errors.labels(worker.name).inc()
        if self._compat:
            self._compat.stream_error(worker)

    def retry(self, leg: Leg, endpoint: str) -> None:
        """A leg is sent again."""
        self._retries.labels(leg).inc()
        if self._compat:
            self._compat.retry(endpoint)

    def retries_exhausted(self, leg: Leg, endpoint: str) -> None:
        """A leg failed for the last time."""
        self._retries_exhausted.labels(leg).inc()
        if self._compat:
            self._compat.retries_exhausted(endpoint)

    # workers

    def breaker_moved(self, worker: Worker, old: BreakerState, new: BreakerState) -> None:
        """A circuit breaker changed state."""
        self._breaker_state.labels(worker.name).set(new)
        self._breaker_moves.labels(worker.name, old.name.lower(), new.name.lower()).inc()
        if self._compat:
            self._compat.breaker_moved(worker, old, new)

    def worker_health(self, worker: Worker, *, healthy: bool) -> None:
        """A health check settled."""
        self._worker_healthy.labels(worker.name).set(healthy)
        if self._compat:
            self._compat.worker_health(worker, healthy=healthy)

    def worker_removed(self, worker: Worker) -> None:
        """Drop the gauges of a worker that is gone; its counters stay."""
        for gauge in (self._worker_healthy, self._breaker_state):
            gauge.remove_by_labels({"worker": worker.name})
        if self._compat:
            self._compat.worker_removed(worker)

    def feed_message(self) -> None:
        """A node state was taken."""
        self._feed_messages.inc()

    def feed_dropped(self, reason: str) -> None:
        """A node state was dropped; `reason` is one of our own words."""
        self._feed_dropped.labels(reason).inc()

    def feed_gap(self, missed: int) -> None:
        """`missed` node states never arrived."""
        self._feed_missed.inc(missed)

    # exposition

    def watch(self, nodes: Callable[[], Iterable[NodeState]], now_s: Callable[[], float]) -> None:
        """Read the node gauges from `nodes` at each scrape; `now_s` is the clock of `observed_at_s`."""
        self._nodes, self._now_s = nodes, now_s

    def render(self) -> bytes:
        """Return the text that /metrics answers; its type is CONTENT_TYPE."""
        self._read_nodes()
        return generate_latest(self.registry)

    def _read_nodes(self) -> None:
        for gauge in self._node_gauges.values():
            gauge.clear()
        now_s = self._now_s()
        for node in self._nodes():
            for name, value in _node_values(node, now_s).items():
                self._node_gauges[name].labels(node.node_id, node.role).set(value)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"kairos_router_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"kairos_router_{name}", text, labels, registry=self.registry)

    def _counted(self, name: str, text: str, *labels: str) -> CounterTally:
        return CounterTally(f"kairos_router_{name}", text, labels, self.registry)

    def _level(self, name: str, text: str, *labels: str) -> GaugeTally:
        return GaugeTally(f"kairos_router_{name}", text, labels, self.registry)

    def _spread(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> HistogramTally:
        return HistogramTally(f"kairos_router_{name}", text, labels, self.registry, buckets)

    def _make_request_series(self) -> None:
        self._requests = self._counted("requests_total", "Requests answered", "endpoint", "status")
        self._active = self._level("requests_active", "Requests being served").labels()
        self._queue = self._gauge("queue_requests", "Requests waiting for admission")
        self._request_seconds = self._spread("request_duration_seconds", "Requests, end to end", _LEG_BUCKETS_S, "route")
        self._decisions = self._counted(
            "decisions_total",
            "Where prompts were computed: decode-only is deflected, prefill-decode is kept",
            "decision_type",
            "reason",
            "model_name",
        )
        self._rejections = self._counter("rejections_total", "Requests that no node took", "reason", "model_name")
        self._leases_gone = self._counter("leases_gone_total", "Deflections that no lease covered any more", "node", "reason")
        self._errors = self._counter("errors_total", "Requests that failed", "kind")
        self._stranded = self._counter("stranded_kv_total", "Prefills whose KV nobody pulls", "cause")
        self._transfers_skipped = self._counter("transfers_skipped_total", "KV transfers that deflection made needless", "node")
        self._bytes_skipped = self._counter("transfer_bytes_skipped_total", "Bytes of those transfers", "node")
        self._malformed_schedules = self._counter("malformed_schedules_total", "Chunk schedules a node ignored", "node")

    def _make_prediction_series(self) -> None:
        self._ttft = self._spread("ttft_seconds", "Time to first token", _TTFT_BUCKETS_S, "route")
        self._ttft_predicted = self._spread("ttft_predicted_seconds", "Predicted TTFT", _TTFT_BUCKETS_S, "route")
        self._ttft_error = self._spread("ttft_error_seconds", "Actual minus predicted TTFT", _ERROR_BUCKETS_S, "route")
        self._tbt = self._spread("tbt_seconds", "Gap between events of streams that bring text", _TTFT_BUCKETS_S, "route")
        self._step_error = self._spread(
            "step_error_seconds", "Measured minus predicted step of an engine", _STEP_ERROR_BUCKETS_S, "node"
        )

    def _make_worker_series(self) -> None:
        self._legs_active = self._level("legs_active", "Calls to servers under way", "leg", "worker")
        self._leg_seconds = self._spread("leg_duration_seconds", "Calls to servers", _LEG_BUCKETS_S, "leg", "worker")
        self._leg_outcomes = self._counted("legs_total", "Calls to servers ended", "leg", "worker", "outcome")
        self._stream_errors = self._counter("stream_errors_total", "Streams broken after the first byte", "worker")
        self._retries = self._counter("retries_total", "Legs sent again", "leg")
        self._retries_exhausted = self._counter("retries_exhausted_total", "Legs that failed for the last time", "leg")
        self._breaker_state = self._gauge("breaker_state", "0 closed, 1 open, 2 half open", "worker")
        self._breaker_moves = self._counter("breaker_transitions_total", "Breaker moves", "worker", "from", "to")
        self._worker_healthy = self._gauge("worker_healthy", "1 while health checks pass", "worker")
        self._feed_messages = self._counter("feed_messages_total", "Node states taken")
        self._feed_dropped = self._counter("feed_dropped_total", "Node states dropped", "reason")
        self._feed_missed = self._counter("feed_missed_total", "Node states that never arrived, by sequence")

    def _make_node_series(self) -> None:
        self._node_gauges = {name: self._gauge(f"node_{name}", text, "node", "role") for name, text in _NODE_TEXTS.items()}


_LEASE_REASONS = frozenset(LeaseGone)

_NODE_TEXTS = {
    "running_decodes": "Running decodes",
    "kv_blocks_free": "Free KV blocks",
    "kv_blocks_total": "KV blocks",
    "queued_prefill_tokens": "Prompt tokens queued or running",
    "remote_kv_requests": "Requests waiting for remote KV",
    "deflected_prefills": "Deflected prefills under way",
    "lease_prefill_tokens": "Prefill tokens left of this router's share of the node's lease",
    "accepting": "1 while the node takes new requests",
    "stale": "1 while no report came in time",
    "state_age_seconds": "Age of the last report",
}


def _node_values(node: NodeState, now_s: float) -> dict[str, float]:
    return {
        "running_decodes": node.running_decodes,
        "kv_blocks_free": node.free_kv_blocks,
        "kv_blocks_total": node.total_kv_blocks,
        "queued_prefill_tokens": node.queued_prefill_tokens,
        "remote_kv_requests": node.remote_kv_requests,
        "deflected_prefills": node.deflected_prefills,
        "lease_prefill_tokens": 0 if node.lease is None else node.lease.share.prefill_tokens,
        "accepting": node.accepting,
        "stale": node.stale,
        "state_age_seconds": max(0.0, now_s - node.observed_at_s),
    }
