"""Prompts at a static policy's threshold, from the client's body to the recorded reason."""

import asyncio
from itertools import pairwise

import pytest

from kairos_router.config import TokenSettings
from kairos_router.tokens import TokenCounter
from vllm_kairos.core.decision import Assign, Reason
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.registry import make_policy, router_spec
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape

NODES = [
    NodeState(node_id="p0", role=Role.PREFILL, total_kv_blocks=999, free_kv_blocks=999),
    NodeState(node_id="d0", role=Role.DECODE, total_kv_blocks=999, free_kv_blocks=999),
]


RULES = ["static-length:{}", "dynamo-isl:{}:2", "llmd-noncached:{}"]  # one inequality where nothing is cached


def decide(rule: str, threshold: int, tokens: int) -> Assign:
    counted = asyncio.run(TokenCounter(TokenSettings()).count("/v1/completions", {"prompt": [7] * tokens}))
    policy = make_policy(
        router_spec(rule.format(threshold)), prefill_model=None, decode_model=None, settings=DecisionSettings()
    )
    decision = policy.decide(RequestShape(request_id="r", prompt_tokens=counted.prompt_tokens), NODES, 0.0)
    assert isinstance(decision, Assign)
    return decision


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("threshold", [1, 5, 16, 17])
def test_the_reason_changes_exactly_once_around_the_threshold(rule, threshold):
    """Case 70: prompts below one KV block included."""
    reasons = [decide(rule, threshold, tokens).reason for tokens in range(max(1, threshold - 1), threshold + 2)]
    assert set(reasons) <= {Reason.THRESHOLD, Reason.BELOW_RULE}
    assert sum(before is not after for before, after in pairwise(reasons)) <= 1
    assert len(set(reasons)) == 2 or threshold == 1


def test_a_threshold_of_zero_sends_one_token_over_two_legs():
    """Case 70: a prompt below one block takes the prefill path where the rule says so."""
    assert decide("static-length:{}", 0, 1).prefill_node == "p0"
    assert decide("dynamo-isl:{}", 0, 1).prefill_node == "p0"


def test_llmds_threshold_of_zero_turns_disaggregation_off():
    assert decide("llmd-noncached:{}", 0, 999).prefill_node is None
