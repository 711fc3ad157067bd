"""The `crossflow` policy: what leases allow, what they refuse, and nodes that speak of none."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import A100, clusters, models, requests
from vllm_kairos.core.decision import Assign, Claim, Reason, RejectReason, Verdict
from vllm_kairos.core.lease import NodeLease, Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies import make_policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route

BURST = NodeState(
    node_id="p0",
    role=Role.PREFILL,
    total_kv_blocks=4000,
    free_kv_blocks=4000,
    queued_prompt_tokens=(8000,) * 6,
    queued_prefill_tokens=48_000,
)
OLD = NodeState(
    node_id="d0",
    role=Role.DECODE,
    running_decodes=20,
    kv_tokens=40_000,
    total_kv_blocks=4000,
    free_kv_blocks=1500,
    kv_bytes_per_token=131072,
)
LEASE = NodeLease("boot-7", Share(5000, 300, 400), until_s=9.0)
OPEN = replace(OLD, lease=LEASE, speaks_leases=True)
CLOSED = replace(OLD, speaks_leases=True)
BUSY = {"deflected_prefills": 2, "queued_prompt_tokens": (300,), "queued_prefill_tokens": 300, "deflected_tokens_left": 300}
REQUEST = RequestShape(request_id="r", prompt_tokens=4096, max_output_tokens=100)
NEED = Share(4096, 263, 100)


def policy(spec: str = "crossflow", **settings: object):
    made = DecisionSettings(**settings)  # type: ignore[arg-type]
    return make_policy(spec, prefill_model=A100, decode_model=A100, settings=made)


def decide(nodes: list[NodeState], asked: RequestShape = REQUEST, **settings: object):
    return policy(**settings).decide(asked, nodes, 1.0)


def shared(*amounts: int) -> NodeState:
    return replace(OLD, lease=replace(LEASE, share=Share(*amounts)), speaks_leases=True)


def test_a_lease_lets_a_node_take_another_deflection_and_is_claimed() -> None:
    decision = decide([BURST, replace(OPEN, **BUSY)])
    assert (decision.route, decision.reason, decision.decode_node) == (Route.LOCAL, Reason.SOONER, "d0")
    assert decision.claim == Claim("boot-7", NEED)
    assert policy("kairos").decide(REQUEST, [BURST, replace(OPEN, **BUSY)], 1.0).reason is Reason.DEFLECTION_BUSY


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (CLOSED, Reason.NO_LEASE),
        (shared(4095, 300, 400), Reason.NO_LEASE),
        (shared(5000, 262, 400), Reason.NO_LEASE),
        (shared(5000, 300, 99), Reason.NO_LEASE),
        (shared(*NEED), Reason.SOONER),
        (replace(OPEN, stale=True), Reason.STATE_STALE),
        (replace(OPEN, running_decodes=231), Reason.SLOTS_FULL),
        (replace(OPEN, free_kv_blocks=0), Reason.SOONER),  # for what is on prefill nodes yet: the node knows better
        (replace(OLD, **BUSY), Reason.DEFLECTION_BUSY),
    ],
)
def test_what_keeps_a_request_on_the_prefill_path(node: NodeState, reason: Reason) -> None:
    decision = decide([BURST, node])
    assert (decision.route is Route.LOCAL) is (reason is Reason.SOONER)
    assert decision.reason is reason
    assert (decision.claim is None) is (reason is not Reason.SOONER)


def test_a_node_that_speaks_of_no_leases_is_used_as_under_kairos() -> None:
    for node in (OLD, replace(OLD, **BUSY)):
        asked = [BURST, node, replace(OLD, node_id="d1", running_decodes=60, kv_tokens=90_000)]
        assert decide(asked) == policy("kairos").decide(REQUEST, asked, 1.0)


def test_the_prompts_cached_part_is_not_spent() -> None:
    node = shared(1096, 263, 100)
    cached = replace(REQUEST, cached_tokens={"d0": 3000})
    assert decide([BURST, node], cached).claim == Claim("boot-7", Share(1096, 263, 100))
    assert decide([BURST, node]).reason is Reason.NO_LEASE


def test_what_is_bound_to_the_decode_path_claims_nothing() -> None:
    decision = decide([BURST, OPEN], replace(REQUEST, forced_route=Route.LOCAL))
    assert (decision.route, decision.claim) == (Route.LOCAL, None)


def test_what_a_node_refused_is_kept() -> None:
    again = replace(REQUEST, forced_route=Route.REMOTE, forced_reason=Reason.LEASE_GONE)
    decision = decide([BURST, OPEN], again)
    assert (decision.route, decision.reason, decision.claim) == (Route.REMOTE, Reason.LEASE_GONE, None)


@pytest.mark.parametrize(("slo_s", "route"), [(0.3, Route.LOCAL), (2.0, Route.LOCAL)])
def test_where_both_paths_are_late_it_takes_the_sooner_one(slo_s: float, route: Route) -> None:
    decision = decide([BURST, OPEN], replace(REQUEST, ttft_slo_s=slo_s))
    assert decision.local_ttft_s < decision.remote_ttft_s
    assert (decision.route, decision.reason) == (route, Reason.SOONER)


def test_a_first_token_in_time_is_not_given_up_for_one_that_is_late() -> None:
    short = replace(BURST, queued_prompt_tokens=(3000,), queued_prefill_tokens=3000)
    queued = replace(OPEN, queued_prompt_tokens=(9000,), queued_prefill_tokens=9000)
    decision = decide([short, queued])
    assert decision.remote_ttft_s < decision.local_ttft_s
    asked = replace(REQUEST, ttft_slo_s=0.5 * (decision.remote_ttft_s + decision.local_ttft_s))
    assert decide([short, queued], asked).reason is Reason.OVER_TTFT_SLO


def test_without_prefill_nodes_leases_bound_what_is_deflected() -> None:
    assert decide([OPEN]).claim == Claim("boot-7", NEED)
    refused = decide([CLOSED])
    assert (refused.reason, refused.retry_after_s) == (RejectReason.NO_SAFE_NODE, 1.0)
    anyhow = decide([CLOSED], prefill_unavailable="deflect")
    assert (anyhow.route, anyhow.claim) == (Route.LOCAL, None)


def test_the_explanation_shows_what_may_be_spent() -> None:
    lines = policy().explain(REQUEST, [BURST, OPEN, replace(CLOSED, node_id="d1")], 1.0).nodes
    seen = {line.node_id: (line.verdict, line.lease) for line in lines}
    assert seen["d0"] == (Verdict.CHOSEN, LEASE.share)
    assert seen["d1"] == (Verdict.NO_LEASE, None)


@given(models(), clusters(), requests())
def test_a_claim_is_covered_by_what_the_node_grants(model, nodes: list[NodeState], asked: RequestShape) -> None:
    decision = make_policy("crossflow", prefill_model=model, decode_model=model, settings=DecisionSettings()).decide(
        asked, nodes, 1.0
    )
    if not isinstance(decision, Assign) or decision.route is Route.REMOTE:
        return
    node = next(node for node in nodes if node.node_id == decision.decode_node)
    assert (decision.claim is None) is (not node.speaks_leases)
    if decision.claim is not None:
        assert node.lease is not None
        assert node.lease.lease_id == decision.claim.lease_id
        assert node.lease.share.covers(decision.claim.need)
    else:
        assert node.deflected_prefills < 1


@given(models(), clusters(), requests(), st.booleans())
def test_without_lease_speaking_nodes_it_is_kairos(model, nodes: list[NodeState], asked: RequestShape, bound: bool) -> None:
    old = [replace(node, lease=None, speaks_leases=False) for node in nodes]
    mode = "deflect-bounded" if bound else "deflect"
    both = [
        make_policy(spec, prefill_model=model, decode_model=model, settings=DecisionSettings(prefill_unavailable=mode))
        for spec in ("crossflow", "kairos")
    ]
    assert both[0].decide(asked, old, 1.0) == both[1].decide(asked, old, 1.0)
