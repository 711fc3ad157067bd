"""round_robin, random, power_of_two and consistent_hash around a policy."""

import random
from dataclasses import replace

import pytest

from kairos_router.selection import NodeChoice, select
from vllm_kairos.core.decision import Assign, Reject
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.registry import make_policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape, Route

P = [NodeState(node_id=f"p{k}", role=Role.PREFILL, queued_prefill_tokens=k) for k in range(3)]
D = [NodeState(node_id=f"d{k}", role=Role.DECODE, total_kv_blocks=999, free_kv_blocks=999) for k in range(2)]
NEVER = make_policy("never", prefill_model=None, decode_model=None, settings=DecisionSettings())
REQUEST = RequestShape(request_id="r", prompt_tokens=10)


def test_round_robin_takes_turns_in_both_roles():
    policy = select(NEVER, prefill_rule="round_robin", decode_rule="round_robin")
    made = [policy.decide(REQUEST, [*P, *D], 0.0) for _ in range(6)]
    assert all(isinstance(decision, Assign) and decision.route is Route.REMOTE for decision in made)
    assert [decision.prefill_node for decision in made] == ["p0", "p1", "p2"] * 2
    assert [decision.decode_node for decision in made] == ["d0", "d1"] * 3
    assert policy.name == "never"


def test_a_pinned_node_stays_pinned():
    policy = select(NEVER, prefill_rule="round_robin", decode_rule="kairos")
    pinned = RequestShape(request_id="r", prompt_tokens=10, pinned_prefill_node="p2")
    assert [policy.decide(pinned, [*P, *D], 0.0).prefill_node for _ in range(2)] == ["p2", "p2"]


def test_nodes_that_take_no_work_are_not_chosen():
    policy = select(NEVER, prefill_rule="random", decode_rule="random")
    closed = NodeState(node_id="p9", role=Role.PREFILL, accepting=False)
    assert {policy.decide(REQUEST, [closed, P[0], *D], 0.0).prefill_node for _ in range(30)} == {"p0"}
    assert isinstance(policy.decide(REQUEST, [closed, *P], 0.0), Reject)


def test_power_of_two_prefers_the_less_loaded_of_its_pair():
    choice = NodeChoice("power_of_two", random.Random(1))
    picked = [choice.pick(P, REQUEST) for _ in range(300)]
    assert picked.count("p0") > picked.count("p1") > 0
    assert "p2" not in picked  # the most loaded never wins a pair


def asking(key: str) -> RequestShape:
    return RequestShape(request_id="r", prompt_tokens=1000, affinity_key=key)


def test_a_session_stays_on_its_servers():
    policy = select(NEVER, prefill_rule="consistent_hash", decode_rule="consistent_hash")
    made = {policy.decide(asking("s"), nodes, 0.0) for nodes in ([*P, *D], [*D[::-1], *P[::-1]])}
    assert len({(decision.prefill_node, decision.decode_node) for decision in made}) == 1
    spread = [policy.decide(asking(f"session {number}"), [*P, *D], 0.0) for number in range(60)]
    assert {decision.prefill_node for decision in spread} == {"p0", "p1", "p2"}
    assert {decision.decode_node for decision in spread} == {"d0", "d1"}


def test_without_a_key_the_policy_chooses():
    policy = select(NEVER, prefill_rule="consistent_hash", decode_rule="consistent_hash")
    assert policy.decide(REQUEST, [*P, *D], 0.0) == NEVER.decide(REQUEST, [*P, *D], 0.0)


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({"free_kv_blocks": 62}, True),  # 1000 tokens need 63 blocks of 16
        ({"free_kv_blocks": 63}, False),
        ({"max_running_requests": 4, "running_decodes": 4}, True),
        ({"max_running_requests": 4, "running_decodes": 3}, False),
        ({"accepting": False}, True),
        ({"free_kv_blocks": 0, "stale": True}, False),  # nobody knows whether it is full
        ({"total_kv_blocks": 0, "free_kv_blocks": 0}, False),
    ],
)
def test_a_full_or_unhealthy_server_is_left_and_come_back_to(change, left):
    policy = select(NEVER, prefill_rule="kairos", decode_rule="consistent_hash")
    home = policy.decide(asking("s"), [*P, *D], 0.0).decode_node
    changed = [replace(node, **change) if node.node_id == home else node for node in D]
    assert (policy.decide(asking("s"), [*P, *changed], 0.0).decode_node != home) is left
    assert policy.decide(asking("s"), [*P, *D], 0.0).decode_node == home


def test_where_every_server_is_full_the_session_stays():
    policy = select(NEVER, prefill_rule="kairos", decode_rule="consistent_hash")
    full = [replace(node, free_kv_blocks=0) for node in D]
    homes = [policy.decide(asking("s"), [*P, *nodes], 0.0).decode_node for nodes in (D, full)]
    assert homes[0] == homes[1]


@pytest.mark.parametrize("rule", ["round_robin", "random", "power_of_two"])
def test_no_node_is_no_choice(rule):
    assert NodeChoice(rule).pick([], REQUEST) is None


def test_the_policys_own_choice_needs_no_wrapper():
    assert select(NEVER, prefill_rule="kairos", decode_rule="kairos") is NEVER
