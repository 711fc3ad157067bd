"""The same events under vllm-router's names and labels, where the meaning is equal."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kairos_router.breaker import BreakerState
from kairos_router.failures import Leg
from kairos_router.registry import Worker
from vllm_kairos.core.decision import Assign
from vllm_kairos.core.shapes import Route

_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 300, 600, 1800)
_CB_STATES = {BreakerState.CLOSED: "closed", BreakerState.OPEN: "open", BreakerState.HALF_OPEN: "half_open"}


class CompatMetrics:
    """vllm_router_* series; `worker` labels are URLs and `route` labels are endpoints there."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._make_request_series()
        self._make_worker_series()

    def request_started(self, endpoint: str) -> None:
        self._requests.labels(endpoint).inc()

    def request_finished(self, endpoint: str, seconds: float) -> None:
        self._seconds.labels(endpoint).observe(seconds)

    def decision(self, decision: Assign) -> None:
        policy = "deflect" if decision.route is Route.LOCAL else "disaggregate"
        self._decisions.labels(policy, decision.decode_node).inc()

    def error(self, kind: str) -> None:
        self._errors.labels(kind).inc()

    def leg_started(self, leg: Leg, worker: Worker) -> None:
        self._load.labels(worker.url).inc()
        self._legs[leg].labels(worker.url).inc()
        if leg is Leg.DECODE:
            self._active_decodes.labels(worker.url).inc()

    def leg_finished(self, leg: Leg, worker: Worker, *, failed: bool) -> None:
        self._load.labels(worker.url).dec()
        if leg is Leg.DECODE:
            self._active_decodes.labels(worker.url).dec()
        if failed:
            self._leg_errors[leg].labels(worker.url).inc()

    def stream_error(self, worker: Worker) -> None:
        self._stream_errors.labels(worker.url).inc()

    def retry(self, endpoint: str) -> None:
        self._retries.labels(endpoint).inc()

    def retries_exhausted(self, endpoint: str) -> None:
        self._retries_exhausted.labels(endpoint).inc()

    def breaker_moved(self, worker: Worker, old: BreakerState, new: BreakerState) -> None:
        self._cb_state.labels(worker.url).set(new)
        self._cb_moves.labels(worker.url, _CB_STATES[old], _CB_STATES[new]).inc()

    def worker_health(self, worker: Worker, *, healthy: bool) -> None:
        self._health.labels(worker.url).set(healthy)

    def worker_removed(self, worker: Worker) -> None:
        for gauge in (self._health, self._cb_state, self._load, self._active_decodes):
            gauge.remove_by_labels({"worker": worker.url})

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"vllm_router_{name}", text, labels, registry=self._registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"vllm_router_{name}", text, labels, registry=self._registry)

    def _make_request_series(self) -> None:
        self._requests = self._counter("pd_requests_total", "Requests by endpoint", "route")
        self._seconds = Histogram(
            "vllm_router_pd_request_duration_seconds",
            "Requests, end to end",
            ("route",),
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self._errors = self._counter("pd_errors_total", "Failed requests", "error_type")
        self._decisions = self._counter("policy_decisions_total", "Decisions", "policy", "worker")
        self._retries = self._counter("retries_total", "Retries by endpoint", "route")
        self._retries_exhausted = self._counter("retries_exhausted_total", "Retries used up by endpoint", "route")

    def _make_worker_series(self) -> None:
        self._legs = {
            Leg.PREFILL: self._counter("pd_prefill_requests_total", "Prefill calls", "worker"),
            Leg.DECODE: self._counter("pd_decode_requests_total", "Decode calls", "worker"),
        }
        self._leg_errors = {
            Leg.PREFILL: self._counter("pd_prefill_errors_total", "Failed prefill calls", "worker"),
            Leg.DECODE: self._counter("pd_decode_errors_total", "Failed decode calls", "worker"),
        }
        self._stream_errors = self._counter("pd_stream_errors_total", "Broken streams", "worker")
        self._active_decodes = self._gauge("pd_active_decode_requests", "Decode calls under way", "worker")
        self._load = self._gauge("worker_load", "Calls under way", "worker")
        self._health = self._gauge("worker_health", "1 while healthy", "worker")
        self._cb_state = self._gauge("cb_state", "0 closed, 1 open, 2 half open", "worker")
        self._cb_moves = self._counter("cb_state_transitions_total", "Breaker moves", "worker", "from", "to")
