"""round_robin, random and power_of_two around a policy."""

import random

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
    picked = [choice.pick(P) for _ in range(300)]
    assert picked.count("p0") > picked.count("p1") > 0
    assert "p2" not in picked  # the most loaded never wins a pair


@pytest.mark.parametrize("rule", ["round_robin", "random", "power_of_two"])
def test_no_node_is_no_choice(rule):
    assert NodeChoice(rule).pick([]) is None


def test_the_policys_own_choice_needs_no_wrapper():
    assert select(NEVER, prefill_rule="kairos", decode_rule="kairos") is NEVER
