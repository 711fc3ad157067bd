"""Rules that every decision keeps, whatever the cluster."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import A100, clusters, models, requests
from vllm_kairos.core.ahead import ahead_of_prompt
from vllm_kairos.core.decision import Assign, Reason, Reject
from vllm_kairos.core.estimates import first_decode_steps_s, prefill_completion_s, transfer_bytes, transfer_s
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies import make_policy
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pairs import SoonestPairs
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route

SETTINGS = DecisionSettings()
PEERS = ("dynamo-isl", "dynamo-isl:4000:2", "dynamo-load", "dynamo-load:0", "llmd-noncached", "llmd-noncached:4000")
UNBOUNDED = {"always", "oracle", "crossflow", *PEERS}  # several deflected prefills may share a node
SPECS = ("never", "always", "static-length:4000", "static-queue:1", "kairos", "crossflow", "oracle", *PEERS)
REQUEST = RequestShape(request_id="r", prompt_tokens=2000, tbt_slo_s=1.0)
MODES = ("fail", "deflect-bounded", "deflect")


def make(spec, model, **settings):
    return make_policy(spec, prefill_model=model, decode_model=model, settings=DecisionSettings(**settings))


PER_NODE = st.integers(1, 3)


@given(
    models(),
    clusters(),
    requests(),
    st.sampled_from(SPECS),
    st.sampled_from(MODES),
    PER_NODE,
    st.randoms(use_true_random=False),
)
def test_node_order_never_matters(model, nodes, request_, spec, mode, per_node, rng):
    policy = make(spec, model, prefill_unavailable=mode, deflections_per_node=per_node)
    shuffled = rng.sample(nodes, len(nodes))
    assert policy.decide(request_, nodes, 1.0) == policy.decide(request_, shuffled, 1.0)


@given(models(), clusters(), requests(), st.sampled_from(SPECS), PER_NODE)
def test_a_deflection_fits_the_kv_and_goes_to_a_fresh_accepting_free_node(model, nodes, request_, spec, per_node):
    decision = make(spec, model, deflections_per_node=per_node).decide(request_, nodes, 1.0)
    if not isinstance(decision, Assign) or decision.route is not Route.LOCAL:
        return
    node = next(node for node in nodes if node.node_id == decision.decode_node)
    assert node.role.decodes
    assert node.accepting
    assert not node.stale
    reserve = min(request_.max_output_tokens, SETTINGS.output_reserve_tokens)
    free = node.free_kv_blocks if node.lease is None or spec != "crossflow" else node.lease.share.kv_blocks
    assert node.kv_blocks_for(request_.prompt_tokens + reserve) <= free
    assert spec in UNBOUNDED or node.deflected_prefills < per_node


@given(models(), clusters(), requests(), st.sampled_from(["kairos", "crossflow", "oracle"]), PER_NODE)
def test_a_predicted_deflection_is_safe_in_every_step_and_soon_enough(model, nodes, request_, spec, per_node):
    decision = make(spec, model, deflections_per_node=per_node).decide(request_, nodes, 1.0)
    if not isinstance(decision, Assign) or decision.route is not Route.LOCAL:
        return
    node = next(node for node in nodes if node.node_id == decision.decode_node)
    decodes, kv = ahead_of_prompt(model, node, SETTINGS, SETTINGS.beta * request_.tbt_slo_s).load
    left = request_.uncached_tokens(node.node_id)
    done = request_.prompt_tokens - left
    for chi in decision.schedule.batch_tokens():
        chunk = min(chi - decodes, left)
        step_s = model.latency_s(decodes, kv + done, chunk, done)
        assert not decodes or step_s <= SETTINGS.beta * request_.tbt_slo_s
        left, done, kv = left - chunk, done + chunk, kv + decodes
    assert left == 0
    if decision.reason is Reason.PREFILL_UNAVAILABLE:
        return
    if spec == "oracle":
        assert decision.local_ttft_s < decision.remote_ttft_s
    else:
        in_time = decision.local_ttft_s <= request_.ttft_slo_s
        assert in_time or (spec == "crossflow" and decision.local_ttft_s <= decision.remote_ttft_s)
        assert decision.local_ttft_s <= SETTINGS.alpha * decision.remote_ttft_s


@given(models(), clusters(), requests(), st.sampled_from(SPECS))
def test_a_kept_request_goes_to_two_different_accepting_nodes_of_the_right_roles(model, nodes, request_, spec):
    decision = make(spec, model).decide(request_, nodes, 1.0)
    if not isinstance(decision, Assign) or decision.route is not Route.REMOTE:
        return
    known = {node.node_id: node for node in nodes}
    prefill, decode = known[decision.prefill_node], known[decision.decode_node]
    assert prefill is not decode
    assert prefill.role.prefills
    assert decode.role.decodes
    assert prefill.accepting
    assert decode.accepting
    assert not prefill.stale or all(node.stale for node in nodes if node.role.prefills and node.accepting)


@given(models(), clusters(), requests())
def test_the_pruned_deflection_equals_trying_every_node(model, nodes, request_):
    picker = SafeLocals(model, SETTINGS)
    plans = [(picker.plan(request_, node), node) for node in nodes if node.role.decodes]
    keys = [(plan.ttft_s, node.used_kv_tokens, node.node_id) for plan, node in plans if plan is not None]
    best = picker.best(request_, [node for _, node in plans])
    assert (best is None) == (not keys)
    if best is not None:
        assert (best.ttft_s, best.node.used_kv_tokens, best.node.node_id) == min(keys)


@given(models(), clusters(), requests())
def test_the_pruned_pair_equals_trying_every_pair(model, nodes, request_):
    prefills = [node for node in nodes if node.role.prefills]
    decodes = [node for node in nodes if node.role.decodes]
    pair = SoonestPairs(model, model, SETTINGS).pick(request_, prefills, decodes)
    every_s = []
    for prefill in prefills:
        for decode in decodes:
            if prefill is not decode:
                link = decode.links_from.get(prefill.node_id)
                size = transfer_bytes(decode, request_, SETTINGS)
                move_s = transfer_s(link, size, SETTINGS.default_bandwidth_bytes_per_s)
                (step_s,) = first_decode_steps_s(model, [decode], request_)
                every_s.append(prefill_completion_s(model, prefill, request_) + (step_s + move_s))
    assert (pair is None) == (not every_s)
    assert pair is None or pair.ttft_s == min(every_s)


@given(models(), clusters(), requests(), st.floats(1, 3))
def test_a_larger_alpha_never_turns_a_deflection_into_a_kept_request(model, nodes, request_, factor):
    narrow = make("kairos", model).decide(request_, nodes, 1.0)
    wide = make("kairos", model, alpha=1.3 * factor).decide(request_, nodes, 1.0)
    assert isinstance(narrow, Assign) == isinstance(wide, Assign)
    if isinstance(narrow, Assign) and narrow.route is Route.LOCAL:
        assert wide.decode_node == narrow.decode_node


@given(models(), clusters(), requests(), st.sampled_from(SPECS), PER_NODE)
def test_explaining_decides_the_same(model, nodes, request_, spec, per_node):
    policy = make(spec, model, deflections_per_node=per_node)
    explained = policy.explain(request_, nodes, 1.0)
    assert explained.decision == policy.decide(request_, nodes, 1.0)
    assert len(explained.nodes) == sum(node.role.prefills + node.role.decodes for node in nodes)


@given(models(), st.lists(st.sampled_from([(0, 0), (8, 8000), (8, 8000), (60, 90_000)]), min_size=1, max_size=12))
def test_equal_nodes_are_told_apart_by_load_then_id(model, loads):
    nodes = [
        NodeState(node_id=f"d{at:02}", role=Role.DECODE, running_decodes=b, kv_tokens=k, total_kv_blocks=9, free_kv_blocks=9)
        for at, (b, k) in enumerate(loads)
    ]
    random.Random(0).shuffle(nodes)
    best = SafeLocals(model, SETTINGS).best(REQUEST, nodes)
    if best is not None:
        twins = [node.node_id for node in nodes if node.decode_load == best.node.decode_load]
        assert best.node.node_id == min(twins)


@given(models(), clusters(), requests(), st.sampled_from(MODES))
def test_case_82_always_decides_the_same_without_prefill_nodes(model, nodes, request_, mode):
    policy = make("always", model, prefill_unavailable=mode)
    spare = NodeState(node_id="p9", role=Role.PREFILL, total_kv_blocks=9, free_kv_blocks=9)
    beside = policy.decide(request_, [*nodes, spare], 1.0)
    without = policy.decide(request_, [node for node in nodes if node.role is not Role.PREFILL], 1.0)
    if isinstance(beside, Assign) and beside.route is Route.LOCAL:
        assert isinstance(without, Assign)
        for name in ("route", "decode_node", "reason", "schedule", "local_ttft_s"):
            assert getattr(without, name) == getattr(beside, name)


@pytest.mark.parametrize("spec", SPECS)
def test_an_empty_cluster_is_refused_not_an_error(spec):
    decision = make(spec, A100).decide(REQUEST, [], 0.0)
    assert isinstance(decision, Reject)
    assert decision.retry_after_s is not None
