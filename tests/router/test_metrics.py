"""Metrics: every series, bounded labels, both name sets, and the dashboard and pages that speak of them."""

from pathlib import Path

import pytest

from kairos_router.breaker import BreakerState
from kairos_router.failures import Leg
from kairos_router.flags_page import page
from kairos_router.metrics import MAX_MODEL_NAMES, BoundedLabel, RouterMetrics
from kairos_router.registry import Worker
from kairos_router.serve import metrics_app
from tests.dashboard import asked_by, dashboard_panels
from vllm_kairos.core.decision import Assign, Reason, Reject, RejectReason
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import Route

DOCS = Path(__file__).parents[2] / "docs"
PANELS = dashboard_panels()
D = Worker(name="d0", role=Role.DECODE, url="http://d:1")
P = Worker(name="p0", role=Role.PREFILL, url="http://p:1")
DEFLECTED = Assign(route=Route.LOCAL, decode_node="d0", prefill_node=None, reason=Reason.SOONER)


def exercised(*, compat: bool = False) -> RouterMetrics:
    """Metrics after every event happened once."""
    metrics = RouterMetrics(compat=compat)
    metrics.request_started("/v1/completions")
    metrics.queued(1)
    metrics.decision(DEFLECTED, "m")
    metrics.decision(Reject(reason=RejectReason.NO_SAFE_NODE), "m")
    metrics.ttft(0.6, 0.4, Route.LOCAL)
    metrics.ttft(None, 0.4, Route.REMOTE)
    metrics.tokens_gap(0.02, Route.LOCAL)
    metrics.step_error(0.05, 0.06, "d0")
    metrics.transfers_skipped("d0", 1, 100)
    metrics.malformed_schedules("d0", 1)
    metrics.stranded_kv("release-failed")
    metrics.lease_gone("d0", "spent")
    metrics.error("decode-reset")
    for leg, worker, outcome in ((Leg.PREFILL, P, "reset"), (Leg.DECODE, D, "ok")):
        metrics.leg_started(leg, worker)
        metrics.leg_finished(leg, worker, 0.2, outcome)
        metrics.retry(leg, "/v1/completions")
        metrics.retries_exhausted(leg, "/v1/completions")
    metrics.stream_error(D)
    metrics.breaker_moved(D, BreakerState.CLOSED, BreakerState.OPEN)
    metrics.worker_health(D, healthy=True)
    metrics.feed_message()
    metrics.feed_dropped("unsigned")
    metrics.feed_gap(2)
    metrics.request_finished("/v1/completions", 200, Route.LOCAL, 0.6)
    metrics.watch(lambda: [NodeState(node_id="d0", role=Role.DECODE, total_kv_blocks=9, free_kv_blocks=5)], lambda: 2.0)
    return metrics


def series(metrics: RouterMetrics) -> dict[str, float]:
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def names(metrics: RouterMetrics) -> set[str]:
    return {name.partition("{")[0] for name in series(metrics)}


def test_a_decision_is_counted_with_its_type_and_reason():
    label = 'decision_type="decode-only",model_name="m",reason="sooner"'
    assert series(exercised())[f"kairos_router_decisions_total{{{label}}}"] == 1
    assert series(exercised())['kairos_router_rejections_total{model_name="m",reason="no-safe-node"}'] == 1


def test_the_ttft_error_is_signed():
    shown = series(exercised())
    assert shown['kairos_router_ttft_error_seconds_bucket{le="-0.1",route="decode-only"}'] == 1
    assert shown['kairos_router_ttft_seconds_count{route="prefill-decode"}'] == 1
    assert 'kairos_router_ttft_error_seconds_count{route="prefill-decode"}' not in shown  # nothing was predicted


def test_nothing_stays_active_after_the_end():
    shown = series(exercised(compat=True))
    assert shown["kairos_router_requests_active"] == 0
    assert shown['kairos_router_legs_active{leg="decode",worker="d0"}'] == 0
    assert shown['vllm_router_worker_load{worker="http://d:1"}'] == 0


def test_nodes_that_are_gone_leave_the_gauges():
    metrics = exercised()
    assert 'kairos_router_node_kv_blocks_free{node="d0",role="decode"}' in series(metrics)
    metrics.watch(list, lambda: 3.0)
    assert not [name for name in series(metrics) if name.startswith("kairos_router_node_") and "{" in name]
    metrics.worker_removed(D)
    assert 'kairos_router_worker_healthy{worker="d0"}' not in series(metrics)
    metrics.worker_removed(D)  # twice is harmless


def test_model_names_of_clients_cannot_grow_the_label_set():
    metrics = RouterMetrics()
    for number in range(MAX_MODEL_NAMES + 50):
        metrics.decision(DEFLECTED, f"model-{number}")
    counted = {name: value for name, value in series(metrics).items() if name.startswith("kairos_router_decisions_total")}
    assert len(counted) == MAX_MODEL_NAMES + 1
    assert sum(value for name, value in counted.items() if 'model_name="other"' in name) == 50


def test_a_bounded_label_keeps_what_it_let_through():
    label = BoundedLabel(2)
    assert [label(value) for value in "abcab"] == ["a", "b", "other", "a", "b"]


COMPAT = """pd_requests_total pd_prefill_requests_total pd_decode_requests_total pd_errors_total pd_prefill_errors_total
pd_stream_errors_total pd_request_duration_seconds_count pd_active_decode_requests worker_health worker_load cb_state
cb_state_transitions_total retries_total retries_exhausted_total policy_decisions_total"""


def test_vllm_routers_names_appear_beside_ours_on_request_only():
    both, ours = names(exercised(compat=True)), names(exercised())
    assert {f"vllm_router_{name}" for name in COMPAT.split()} <= both
    assert not any(name.startswith("vllm_router_") for name in ours)
    assert ours <= both


def test_the_dashboard_asks_for_metrics_that_exist():
    """Of the router; tests/engine/test_dashboard.py has the others."""
    asked = asked_by(PANELS, "kairos_router")
    assert asked
    assert asked <= names(exercised())


def test_the_panels_of_the_dashboard_are_apart():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    taken = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
    assert len(set(taken)) == len(taken)


def test_the_dashboard_shows_every_family():
    text = (DOCS / "grafana/kairos-router.json").read_text()
    families = {family.name for family in exercised().registry.collect()}
    not_shown = {"kairos_router_request_duration_seconds", "kairos_router_breaker_transitions", "kairos_router_legs"}
    assert {family for family in families if family not in text} <= not_shown


def test_the_reference_page_says_what_the_flags_say():
    written = (DOCS / "router-flags.md").read_text()
    assert written == page(), "run: python -m kairos_router.flags_page > docs/router-flags.md"


@pytest.mark.parametrize("path", ["/metrics"])
async def test_the_metrics_port_serves_the_text(aiohttp_client, path):
    client = await aiohttp_client(metrics_app(exercised()))
    answer = await client.get(path)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "kairos_router_requests_total" in await answer.text()
