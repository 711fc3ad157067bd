"""`always`, the rules of other products, and the oracle, case by case."""

from dataclasses import replace

import pytest

from tests.core.test_policies import BURST, D0, D1, P0, P1, decide, policy, request
from vllm_kairos.core.decision import Reason, RejectReason
from vllm_kairos.core.shapes import Route

REMOTE, LOCAL = Route.REMOTE, Route.LOCAL


def test_always_ignores_the_bound_of_one_but_prefers_a_free_node():
    rule = policy("always", models=False)
    assert decide([P0, replace(D0, deflected_prefills=1, free_kv_blocks=4000), D1], policy_=rule).decode_node == "d1"
    assert decide([P0, replace(D0, deflected_prefills=2)], policy_=rule).route is LOCAL
    assert decide([P0, replace(D0, free_kv_blocks=0)], policy_=rule).reason is Reason.KV_FULL


@pytest.mark.parametrize("mode", ["fail", "deflect-bounded", "deflect"])
@pytest.mark.parametrize("decode", [D0, replace(D0, deflected_prefills=1), replace(D0, kv_tokens=10**6)])
def test_case_82_always_needs_no_prefill_node(mode, decode):
    rule = policy("always", prefill_unavailable=mode)
    beside, without = decide([P0, decode], policy_=rule), decide([decode], policy_=rule)
    assert (without.route, without.reason) == (LOCAL, Reason.ALWAYS)
    assert (without.decode_node, without.schedule) == (beside.decode_node, beside.schedule)


@pytest.mark.parametrize("mode", ["fail", "deflect-bounded"])
def test_what_always_cannot_deflect_is_refused_where_there_is_no_prefill_node(mode):
    full = replace(D0, free_kv_blocks=0)
    expected = RejectReason.NO_PREFILL_NODE if mode == "fail" else RejectReason.NO_SAFE_NODE
    assert decide([full], policy_=policy("always", prefill_unavailable=mode)).reason is expected


@pytest.mark.parametrize(
    ("spec", "prompt", "cached", "route"),
    [
        ("dynamo-isl", 4000, 0, REMOTE),  # nothing cached: ratio 1
        ("dynamo-isl", 100, 0, REMOTE),
        ("dynamo-isl", 4000, 1952, REMOTE),  # 2048 uncached: not below the threshold
        ("dynamo-isl", 4000, 1953, LOCAL),
        ("dynamo-isl", 1000, 300, REMOTE),  # ratio exactly 0.7
        ("dynamo-isl", 1000, 301, LOCAL),
        ("dynamo-isl", 1000, 1000, LOCAL),
        ("dynamo-isl:500", 1000, 500, REMOTE),
        ("dynamo-isl:500", 1000, 501, LOCAL),
        ("dynamo-isl:2048:0.5", 1000, 500, REMOTE),
        ("dynamo-isl:2048:2", 2047, 0, LOCAL),
        ("dynamo-isl:2048:2", 2048, 0, REMOTE),
        ("dynamo-isl:0", 1000, 1000, REMOTE),
        ("llmd-noncached", 4000, 0, LOCAL),  # 0 turns disaggregation off
        ("llmd-noncached:0", 4000, 0, LOCAL),
        ("llmd-noncached:16", 15, 0, LOCAL),
        ("llmd-noncached:16", 16, 0, REMOTE),
        ("llmd-noncached:16", 4000, 3985, LOCAL),
        ("llmd-noncached:16", 4000, 3984, REMOTE),
    ],
)
def test_case_70_what_is_not_cached_decides_by_the_products_inequality(spec, prompt, cached, route):
    decision = decide([P0, D0], request(prompt, cached_tokens={"d0": cached}), policy_=policy(spec))
    assert decision.route is route
    assert decision.reason is (Reason.THRESHOLD if route is LOCAL else Reason.BELOW_RULE)


@pytest.mark.parametrize(
    ("spec", "queued", "route"),
    [
        ("dynamo-load", 8192, REMOTE),  # 4.0 times a budget of 2048, not above it
        ("dynamo-load", 8193, LOCAL),
        ("dynamo-load:0.5", 1024, REMOTE),
        ("dynamo-load:0.5", 1025, LOCAL),
        ("dynamo-load:0", 0, REMOTE),
        ("dynamo-load:0", 1, LOCAL),
    ],
)
def test_dynamo_load_deflects_while_the_prefill_node_it_would_choose_is_busy(spec, queued, route):
    busy = replace(P0, queued_prompt_tokens=(queued,), queued_prefill_tokens=queued)
    rule = policy(spec)
    assert decide([busy, D0], policy_=rule).route is route
    assert decide([busy, P1, D0], policy_=rule).route is REMOTE


@pytest.mark.parametrize("spec", ["dynamo-isl:8000:2", "dynamo-load:0", "llmd-noncached"])
def test_a_peers_rule_looks_at_the_node_that_costs_fewest_blocks_and_deflects_there(spec):
    emptier = replace(D1, free_kv_blocks=D0.free_kv_blocks + 100)
    nodes = [replace(P0, **BURST), D0, emptier]
    assert decide(nodes, policy_=policy(spec)).decode_node == "d1"
    warm = request(cached_tokens={"d0": 1616})  # 101 blocks
    assert decide(nodes, warm, policy_=policy(spec)).decode_node == "d0"


@pytest.mark.parametrize("spec", ["dynamo-isl:8000:2", "dynamo-load:0", "llmd-noncached"])
def test_a_peers_rule_knows_no_bound_of_one_but_needs_room_and_fresh_state(spec):
    rule, burst = policy(spec, models=False), replace(P0, **BURST)
    assert decide([burst, replace(D0, deflected_prefills=3)], policy_=rule).route is LOCAL
    assert decide([burst, replace(D0, free_kv_blocks=0)], policy_=rule).reason is Reason.KV_FULL
    assert decide([burst, replace(D0, stale=True)], policy_=rule).reason is Reason.STATE_STALE
    assert str(decide([burst, D0], policy_=rule).schedule) == "38x128"


def test_the_oracle_deflects_only_what_is_strictly_sooner():
    queued = replace(P0, queued_prompt_tokens=(400,), queued_prefill_tokens=400)
    kept = decide([queued, D0], policy_=policy("oracle"))
    assert (kept.route, kept.reason) == (REMOTE, Reason.PREFILL_SOONER)
    assert kept.local_ttft_s > kept.remote_ttft_s
    assert decide([queued, D0], policy_=policy("kairos", alpha=3)).reason is Reason.WITHIN_MARGIN
    burst = replace(P0, **BURST)
    assert decide([burst, D0], policy_=policy("oracle")).reason is Reason.SOONER
    assert decide([burst, D0], request(tbt_slo_s=0.016), policy_=policy("oracle")).reason is Reason.TBT_UNSAFE


def test_the_oracle_plans_a_second_prefill_behind_the_first():
    busy = replace(
        D0, deflected_prefills=1, queued_prompt_tokens=(3000,), queued_prefill_tokens=3000, deflected_tokens_left=3000
    )
    nodes = [replace(P0, **BURST), busy]
    assert decide(nodes).reason is Reason.DEFLECTION_BUSY
    alone, behind = (decide([nodes[0], node], policy_=policy("oracle")) for node in (D0, busy))
    assert (behind.route, behind.reason) == (LOCAL, Reason.SOONER)
    first = decide([nodes[0], D0], request(3000), policy_=policy("oracle"))
    assert behind.local_ttft_s == pytest.approx(alone.local_ttft_s + first.local_ttft_s, rel=0.02)


def test_the_oracle_prefers_a_free_node_and_keeps_what_fits_no_slot():
    busy = replace(
        D0, deflected_prefills=1, queued_prompt_tokens=(3000,), queued_prefill_tokens=3000, deflected_tokens_left=3000
    )
    burst = replace(P0, **BURST)
    assert decide([burst, busy, D1], policy_=policy("oracle")).decode_node == "d1"
    crowded = replace(busy, max_running_requests=21)
    assert decide([burst, crowded], policy_=policy("oracle")).reason is Reason.SLOTS_FULL


@pytest.mark.parametrize("spec", ["always", "oracle", "dynamo-isl:8000:2", "dynamo-load:0", "llmd-noncached"])
def test_where_one_each_is_not_the_limit_it_is_not_the_reason(spec):
    busy = replace(D0, deflected_prefills=1)
    for fields, reason in (({"free_kv_blocks": 0}, Reason.KV_FULL), ({"stale": True}, Reason.STATE_STALE)):
        assert decide([replace(P0, **BURST), replace(busy, **fields)], policy_=policy(spec)).reason is reason
