"""What each policy decides, case by case."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.strategies import A100
from vllm_kairos.core.decision import Assign, Reason, Reject, RejectReason, Verdict
from vllm_kairos.core.estimates import queue_wait_s
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.core.policies import POLICY_SPECS, check_spec, make_policy
from vllm_kairos.core.settings import DecisionSettings, PrefillUnavailable
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.errors import ConfigError

P0 = NodeState(node_id="p0", role=Role.PREFILL, total_kv_blocks=4000, free_kv_blocks=4000)
P1 = replace(P0, node_id="p1")
D0 = NodeState(
    node_id="d0",
    role=Role.DECODE,
    running_decodes=20,
    kv_tokens=40_000,
    total_kv_blocks=4000,
    free_kv_blocks=1500,
    kv_bytes_per_token=131072,
)
D1 = replace(D0, node_id="d1", running_decodes=60, kv_tokens=90_000)
BURST = {"queued_prompt_tokens": (8000,) * 6, "queued_prefill_tokens": 48_000}
PEERS = ["dynamo-isl:8192:1.5", "dynamo-load:2", "llmd-noncached:8192"]
MODEL_FREE = ["never", "always", "static-length:8192", "static-queue:4", *PEERS]


def policy(spec: str = "kairos", *, models: bool = True, **settings: object):
    model = A100 if models else None
    made = DecisionSettings(**settings)  # type: ignore[arg-type]
    return make_policy(spec, prefill_model=model, decode_model=model, settings=made)


def request(prompt: int = 4096, **fields: object) -> RequestShape:
    return RequestShape(request_id="r", prompt_tokens=prompt, **fields)  # type: ignore[arg-type]


def decide(nodes, asked=None, *, policy_=None, now_s: float = 1.0):
    return (policy_ or policy()).decide(asked or request(), nodes, now_s)


def test_a_burst_is_deflected_to_the_less_loaded_decode_node():
    decision = decide([replace(P0, **BURST), D0, D1])
    assert isinstance(decision, Assign)
    assert (decision.route, decision.reason, decision.decode_node) == (Route.LOCAL, Reason.SOONER, "d0")
    assert decision.schedule is not None
    assert decision.local_ttft_s < decision.remote_ttft_s
    assert decision.predicted_ttft_s == decision.local_ttft_s


def test_an_idle_prefill_node_keeps_the_prompt_and_both_predictions_are_given():
    decision = decide([P0, replace(D1, kv_tokens=250_000)], request(8000))
    assert (decision.route, decision.reason, decision.prefill_node) == (Route.REMOTE, Reason.PREFILL_SOONER, "p0")
    assert decision.schedule is None
    assert decision.local_ttft_s > 1.3 * decision.remote_ttft_s
    assert decision.predicted_ttft_s == decision.remote_ttft_s


def test_alpha_is_an_inclusive_margin_on_the_wait_that_others_are_spared():
    queued = replace(P0, queued_prompt_tokens=(400,), queued_prefill_tokens=400)
    kept = decide([queued, D0], policy_=policy(alpha=1))
    alpha = 1 + (kept.local_ttft_s - kept.remote_ttft_s) / queue_wait_s(A100, queued)
    assert alpha > 1
    assert decide([queued, D0], policy_=policy(alpha=alpha * (1 + 1e-12))).reason is Reason.WITHIN_MARGIN
    assert decide([queued, D0], policy_=policy(alpha=alpha * (1 - 1e-9))).reason is Reason.PREFILL_SOONER


def test_an_idle_prefill_node_leaves_no_margin_though_the_papers_would_deflect():
    kept = decide([P0, D0], policy_=policy(alpha=2))
    assert kept.reason is Reason.PREFILL_SOONER
    assert kept.remote_ttft_s < kept.local_ttft_s < 2 * kept.remote_ttft_s  # paper Eq. 7 holds


@given(st.integers(1, 4000), st.integers(0, 20_000), st.floats(1, 4))
def test_the_margin_never_exceeds_the_papers(prompt, queued, alpha):
    prefill = replace(P0, queued_prompt_tokens=(queued,) if queued else (), queued_prefill_tokens=queued)
    decision = decide([prefill, D0], request(prompt), policy_=policy(alpha=alpha))
    assume(decision.route is Route.LOCAL)
    assert decision.local_ttft_s <= alpha * decision.remote_ttft_s * (1 + 1e-9)


def test_the_ttft_objective_bounds_a_deflection():
    nodes = [replace(P0, **BURST), D0]
    local_s = decide(nodes).local_ttft_s
    assert decide(nodes, request(ttft_slo_s=local_s)).route is Route.LOCAL
    assert decide(nodes, request(ttft_slo_s=local_s * 0.999)).reason is Reason.OVER_TTFT_SLO


def test_beta_and_the_tbt_objective_bound_every_step():
    nodes = [replace(P0, **BURST), D0]
    assert decide(nodes, request(tbt_slo_s=0.016)).reason is Reason.TBT_UNSAFE
    assert decide(nodes, policy_=policy(beta=0.25)).reason is Reason.TBT_UNSAFE


@pytest.mark.parametrize(
    ("decode", "reason"),
    [
        (replace(D0, stale=True), Reason.STATE_STALE),
        (replace(D0, deflected_prefills=1), Reason.DEFLECTION_BUSY),
        (replace(D0, free_kv_blocks=200), Reason.KV_FULL),
        (replace(D0, running_decodes=256), Reason.SLOTS_FULL),
        (replace(D0, running_decodes=231), Reason.SLOTS_FULL),  # of 256: the rest is for those whose KV is coming
    ],
)
def test_a_decode_node_that_may_not_take_it_still_receives_the_kept_request(decode, reason):
    decision = decide([replace(P0, **BURST), decode])
    assert (decision.route, decision.reason, decision.decode_node) == (Route.REMOTE, reason, "d0")
    assert decision.local_ttft_s is None


def test_a_node_takes_as_many_deflected_prompts_as_it_is_set_to_one_behind_the_other():
    busy = replace(
        D0, deflected_prefills=1, queued_prompt_tokens=(3000,), queued_prefill_tokens=3000, deflected_tokens_left=3000
    )
    burst, two = replace(P0, **BURST), policy(deflections_per_node=2)
    alone, behind = (decide([burst, node], policy_=two) for node in (D0, busy))
    assert (behind.route, behind.reason, behind.decode_node) == (Route.LOCAL, Reason.SOONER, "d0")
    assert behind.local_ttft_s > alone.local_ttft_s
    assert decide([burst, replace(busy, deflected_prefills=2)], policy_=two).reason is Reason.DEFLECTION_BUSY
    assert decide([burst, busy, D1], policy_=two).decode_node == "d1"  # free, and so sooner


def test_deflected_prompts_count_as_the_decodes_that_they_will_be():
    almost = replace(
        D0,
        running_decodes=229,
        deflected_prefills=1,
        queued_prompt_tokens=(64,),
        queued_prefill_tokens=64,
        deflected_tokens_left=64,
    )  # of 256, 230 and no more may be taken
    burst, four = replace(P0, **BURST), policy(deflections_per_node=4)
    asked = request(64, tbt_slo_s=10.0)
    assert decide([burst, almost], asked, policy_=four).route is Route.LOCAL
    assert decide([burst, replace(almost, running_decodes=230)], asked, policy_=four).reason is Reason.SLOTS_FULL


def test_the_reason_is_how_far_the_best_node_got():
    stale, busy, full = replace(D0, stale=True), replace(D1, deflected_prefills=1), replace(D0, node_id="d2", free_kv_blocks=0)
    assert decide([P0, stale, busy]).reason is Reason.DEFLECTION_BUSY
    assert decide([P0, full, stale, busy]).reason is Reason.KV_FULL


def test_room_is_needed_for_the_prompt_and_a_reserve_for_its_output():
    nodes = [replace(P0, **BURST), replace(D0, free_kv_blocks=4096 // 16 + 8)]
    assert decide(nodes, request(max_output_tokens=128)).route is Route.LOCAL
    assert decide(nodes, request(max_output_tokens=129)).reason is Reason.KV_FULL
    assert decide(nodes, request(max_output_tokens=10**6), policy_=policy(output_reserve_tokens=128)).route is Route.LOCAL


def test_nodes_that_accept_nothing_are_never_used():
    closed = replace(D0, accepting=False, running_decodes=0, kv_tokens=0)
    assert decide([replace(P0, accepting=False), replace(P1, **BURST), closed, D1]).decode_node == "d1"


@pytest.mark.parametrize("spec", [*MODEL_FREE, "kairos", "oracle"])
def test_a_prompt_that_no_decode_node_could_ever_hold_is_refused_for_good(spec):
    decision = decide([P0, D0, replace(D1, accepting=False)], request(64_001), policy_=policy(spec))
    assert isinstance(decision, Reject)
    assert (decision.reason, decision.retry_after_s) == (RejectReason.KV_TOO_LARGE, None)
    assert "64000" in decision.detail


def test_a_large_enough_node_that_is_closed_or_unknown_means_try_again():
    large = replace(D0, node_id="big", total_kv_blocks=9000, accepting=False)
    assert decide([P0, D0, large], request(64_001)).reason is RejectReason.NO_DECODE_NODE
    unknown = replace(D0, node_id="new", total_kv_blocks=0, free_kv_blocks=0, stale=True)
    assert decide([P0, D0, unknown], request(64_001)).decode_node == "new"


def test_no_decode_node_is_a_refusal_to_retry():
    decision = decide([P0, replace(D0, accepting=False)])
    assert (decision.reason, decision.retry_after_s) == (RejectReason.NO_DECODE_NODE, 1.0)
    assert decide([]).reason is RejectReason.NO_DECODE_NODE


def test_a_forced_route_is_taken_with_its_reason():
    idle, burst = [P0, D0], [replace(P0, **BURST), D0]
    local = decide(idle, request(forced_route=Route.LOCAL, forced_reason="several-choices"))
    assert (local.route, local.reason) == (Route.LOCAL, "several-choices")
    remote = decide(burst, request(forced_route=Route.REMOTE))
    assert (remote.route, remote.reason) == (Route.REMOTE, Reason.FORCED)
    assert decide([D0], request(forced_route=Route.REMOTE)).reason is RejectReason.NO_PREFILL_NODE


@pytest.mark.parametrize("worst", [{"stale": True}, {"deflected_prefills": 3}, {"free_kv_blocks": 0}, {"running_decodes": 256}])
@pytest.mark.parametrize("spec", [*MODEL_FREE, "kairos", "oracle"])
def test_a_request_that_only_a_decode_node_can_serve_is_served_whatever_its_state(worst, spec):
    decision = decide([P0, replace(D0, **worst)], request(forced_route=Route.LOCAL), policy_=policy(spec))
    assert (decision.route, decision.decode_node) == (Route.LOCAL, "d0")
    assert decision.schedule is not None


def test_a_pinned_prefill_node_is_used_or_the_request_refused():
    nodes = [P0, replace(P1, **BURST), D0]
    pinned = decide(nodes, request(pinned_prefill_node="p1"))
    assert (pinned.prefill_node, pinned.reason) == ("p1", Reason.PINNED)
    assert decide(nodes, request(pinned_prefill_node="evil:80")).reason is RejectReason.UNKNOWN_NODE
    assert decide(nodes, request(pinned_prefill_node="d0")).reason is RejectReason.UNKNOWN_NODE
    closed = [replace(P0, accepting=False), P1, D0]
    assert decide(closed, request(pinned_prefill_node="p0")).reason is RejectReason.NO_PREFILL_NODE


@pytest.mark.parametrize("spec", [*(spec for spec in MODEL_FREE if spec != "always"), "kairos", "oracle"])
@pytest.mark.parametrize(
    ("mode", "decode", "expected"),
    [
        ("fail", D0, RejectReason.NO_PREFILL_NODE),
        ("deflect-bounded", D0, Reason.PREFILL_UNAVAILABLE),
        ("deflect-bounded", replace(D0, deflected_prefills=1), RejectReason.NO_SAFE_NODE),
        ("deflect-bounded", replace(D0, kv_tokens=10**6), RejectReason.NO_SAFE_NODE),
        ("deflect-bounded", replace(D0, stale=True), RejectReason.NO_SAFE_NODE),
        ("deflect", replace(D0, deflected_prefills=1, kv_tokens=10**6), Reason.PREFILL_UNAVAILABLE),
        ("deflect", replace(D0, stale=True), Reason.PREFILL_UNAVAILABLE),
    ],
)
def test_without_a_prefill_node_the_operators_rule_decides(spec, mode, decode, expected):
    decision = decide([replace(P0, accepting=False), decode], policy_=policy(spec, prefill_unavailable=mode))
    assert decision.reason == expected
    if isinstance(decision, Reject):
        assert decision.retry_after_s is not None


def test_case_69_a_stale_node_is_not_idle_and_all_stale_still_serves():
    stale = replace(D0, node_id="d9", running_decodes=0, kv_tokens=0, stale=True)
    assert decide([replace(P0, **BURST), stale, D1]).decode_node == "d1"
    assert decide([P0, stale, D1], policy_=policy("never")).decode_node == "d1"
    lost = [replace(node, stale=True) for node in (P0, D0, D1)]
    for spec in [*MODEL_FREE, "kairos", "oracle"]:
        assert decide(lost, policy_=policy(spec)).route is Route.REMOTE
    assert decide([replace(P0, stale=True), replace(P1, **BURST), D0], policy_=policy("never")).prefill_node == "p1"


@pytest.mark.parametrize(("prompt", "route"), [(999, Route.LOCAL), (1000, Route.REMOTE), (1001, Route.REMOTE)])
def test_case_70_static_length_deflects_what_is_shorter_than_the_threshold(prompt, route):
    decision = decide([P0, D0], request(prompt), policy_=policy("static-length:1000"))
    assert decision.route is route
    assert decision.reason is (Reason.THRESHOLD if route is Route.LOCAL else Reason.BELOW_RULE)


def test_case_70_threshold_zero_sends_even_one_token_to_the_prefill_path():
    assert decide([P0, D0], request(1), policy_=policy("static-length:0")).route is Route.REMOTE


@pytest.mark.parametrize(("waiting", "route"), [(3, Route.REMOTE), (4, Route.REMOTE), (5, Route.LOCAL)])
def test_static_queue_deflects_when_every_queue_is_longer_than_the_threshold(waiting, route):
    queue = (100,) * waiting
    queued = replace(P0, queued_prompt_tokens=queue, queued_prefill_tokens=100 * waiting)
    rule = policy("static-queue:4")
    assert decide([queued, D0], policy_=rule).route is route
    assert decide([queued, P1, D0], policy_=rule).route is Route.REMOTE


@pytest.mark.parametrize("spec", MODEL_FREE)
def test_policies_without_a_model_go_by_load_and_predict_nothing(spec):
    queued = replace(P0, queued_prompt_tokens=(100,) * 5, queued_prefill_tokens=500)
    fuller = replace(D0, node_id="d0", free_kv_blocks=1000)
    decision = decide(
        [replace(queued, node_id="p1"), replace(queued, queued_prefill_tokens=900), fuller, D1],
        policy_=policy(spec, models=False),
    )
    assert decision.decode_node == "d1"
    assert decision.prefill_node in (None, "p1")
    assert decision.predicted_ttft_s is None


def test_static_chunks_are_the_papers_128_and_still_move_beside_many_decodes():
    few = decide([P0, D0], policy_=policy("always"))
    many = decide([P0, replace(D0, running_decodes=200)], policy_=policy("always"))
    assert str(few.schedule) == "38x128"
    assert str(many.schedule) == "256x216"


def test_paper_eq_1_leaves_out_the_transfer_that_decides_here():
    """Queue and prefill alone favour the prefill path; the transfer over a slow link is what costs most."""
    slow = replace(D0, links=(LinkState(prefill_node="p0", bandwidth_bytes_per_s=1e8),))
    decision = decide([P0, slow])
    eq_1_s = A100.latency_s(0, 0, 2048, 0) + A100.latency_s(0, 2048, 2048, 2048)
    assert decision.local_ttft_s > 1.3 * eq_1_s  # Eq. 7 with Eq. 1 would keep it
    assert decision.reason is Reason.SOONER
    assert decision.remote_ttft_s > 5.0


def test_a_kept_request_takes_the_pair_with_the_soonest_first_token():
    fast = tuple(LinkState(prefill_node=name, bandwidth_bytes_per_s=2e10) for name in ("p0", "p1"))
    slow = tuple(replace(link, bandwidth_bytes_per_s=1e9) for link in fast)
    near = replace(D1, links=fast)
    decision = decide([P0, P1, replace(D0, links=slow), near], policy_=policy("never"))
    assert (decision.prefill_node, decision.decode_node) == ("p0", "d1")
    queued = replace(near, links=(replace(fast[0], queued_bytes=10**10), fast[1]))
    assert decide([P0, P1, queued], policy_=policy("never")).prefill_node == "p1"


def test_a_node_of_both_roles_is_never_paired_with_itself():
    both = replace(D0, node_id="b0", role=Role.BOTH)
    for models in (True, False):
        decision = decide([both, replace(P0, **BURST)], policy_=policy("never", models=models))
        assert (decision.prefill_node, decision.decode_node) == ("p0", "b0")
        assert decide([both], policy_=policy("never", models=models)).reason is Reason.PREFILL_UNAVAILABLE


def test_the_age_is_that_of_the_oldest_state_used():
    nodes = [replace(P0, observed_at_s=0.9), replace(D0, observed_at_s=0.7)]
    assert decide(nodes).state_age_s == pytest.approx(0.3)
    never = [replace(P0, stale=True, observed_at_s=float("-inf")), D0]
    assert decide(never, policy_=policy("never")).state_age_s is None


def test_an_explanation_has_a_line_for_every_node_and_the_same_decision():
    nodes = [replace(P0, **BURST), P1, D0, replace(D1, stale=True), replace(D1, node_id="d2", kv_tokens=10**6)]
    nodes[1] = replace(P1, accepting=False)
    made = policy()
    explained = made.explain(request(), nodes, 1.0)
    assert explained.decision == made.decide(request(), nodes, 1.0)
    verdicts = {line.node_id: line.verdict for line in explained.nodes}
    assert verdicts == {
        "p0": Verdict.FEASIBLE,
        "p1": Verdict.NOT_ACCEPTING,
        "d0": Verdict.CHOSEN,
        "d1": Verdict.STALE,
        "d2": Verdict.TBT_UNSAFE,
    }


BAD_SPECS = [
    "",
    "best",
    "never:1",
    "kairos:2",
    "oracle:1",
    "static-length",
    "static-length:-1",
    "static-queue:x",
    "static-queue:1:2",
]
BAD_SPECS += ["dynamo-isl:", "dynamo-isl:-1", "dynamo-isl:9:x", "dynamo-isl:9:nan", "dynamo-load:-1", "llmd-noncached:1.5"]


@pytest.mark.parametrize("spec", BAD_SPECS)
def test_an_unknown_policy_is_refused_by_name(spec):
    with pytest.raises(ConfigError, match="policy"):
        policy(spec)
    with pytest.raises(ConfigError, match="policy"):
        check_spec(spec)


@pytest.mark.parametrize("spec", ["kairos", "oracle"])
def test_a_policy_that_predicts_is_refused_without_a_profile(spec):
    check_spec(spec)
    with pytest.raises(ConfigError, match=f"policy '{spec}' needs a latency profile, got none"):
        policy(spec, models=False)


@pytest.mark.parametrize("spec", [*MODEL_FREE, "kairos", "oracle"])
def test_a_policy_is_called_what_it_was_asked_for(spec):
    assert policy(spec).name == spec
    assert [known for known in POLICY_SPECS if known.replace("[", ":").split(":")[0] == spec.split(":")[0]]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alpha", 0.99),
        ("alpha", float("nan")),
        ("beta", 0.0),
        ("beta", 1.1),
        ("chunk_candidates_tokens", ()),
        ("chunk_candidates_tokens", (64, 0)),
        ("static_chunk_tokens", 0),
        ("unplanned_chunk_tokens", 0),
        ("default_bandwidth_bytes_per_s", 0.0),
        ("output_reserve_tokens", -1),
        ("prefill_unavailable", "perhaps"),
        ("retry_after_s", 0.0),
    ],
)
def test_a_setting_out_of_range_is_named(field, value):
    with pytest.raises(ConfigError, match=field):
        DecisionSettings(**{field: value})


def test_settings_put_candidates_in_order_and_modes_in_type():
    settings = DecisionSettings(chunk_candidates_tokens=(64, 512, 64, 128), prefill_unavailable="fail")
    assert settings.chunk_candidates_tokens == (512, 128, 64)
    assert settings.prefill_unavailable is PrefillUnavailable.FAIL
