"""TaiChi's choice of instances: a table of clusters, and what its settings refuse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.taichi_cluster import cluster
from vllm_kairos.core.decision import Assign, Reject, RejectReason
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import RequestShape, Route
from vllm_kairos.errors import ConfigError
from vllm_kairos.sim.policies import build_policy
from vllm_kairos.sim.taichi.policy import FEASIBLE, INFEASIBLE
from vllm_kairos.sim.taichi.settings import TaichiSettings, parse_taichi

BUILT = build_policy("taichi:256", cluster())
SHORT, LONG = 1000, 12000


def node(name: str, **state: int | bool) -> NodeState:
    role = Role.PREFILL if name.startswith("p") else Role.DECODE
    free = state.pop("free_kv_blocks", 60_000)
    return NodeState(
        node_id=name,
        role=role,
        total_kv_blocks=62_500,
        free_kv_blocks=free,
        kv_bytes_per_token=31_104,
        **state,  # type: ignore[arg-type]
    )


def queued(name: str, tokens: int, **state: int) -> NodeState:
    return node(name, queued_prefill_tokens=tokens, queued_prompt_tokens=(tokens,), **state)  # type: ignore[arg-type]


def decide(prompt_tokens: int, *nodes: NodeState, ttft_slo_s: float = 1.1) -> Assign:
    shape = RequestShape(request_id="r", prompt_tokens=prompt_tokens, ttft_slo_s=ttft_slo_s)
    decision = BUILT.policy.decide(shape, nodes, 0.0)
    assert isinstance(decision, Assign)
    return decision


CASES = [
    # name, prompt, nodes, prefill on (None: where it decodes), decode on
    ("an idle cluster computes a short prompt in small chunks", SHORT, [node("p0"), node("d0")], None, "d0"),
    ("a prompt too long for small chunks takes large ones", LONG, [node("p0"), node("d0")], "p0", "d0"),
    ("fewer queued tokens win", SHORT, [node("p0"), queued("d0", 300)], "p0", "d0"),
    ("fewer queued tokens win over small chunks", SHORT, [queued("p0", 900), queued("d0", 300)], None, "d0"),
    ("among P-heavy ones too", LONG, [queued("p0", 900), queued("p1", 300), node("d0")], "p1", "d0"),
    ("a queue that breaks the objective is avoided", SHORT, [queued("p0", 9000), queued("d0", 8000)], "p0", "d0"),
    (
        "the decode goes where the least KV is in use",
        LONG,
        [node("p0"), node("d0", free_kv_blocks=9000), node("d1")],
        "p0",
        "d1",
    ),
    ("KV on its way counts", LONG, [node("p0"), node("d0", expected_kv_tokens=500), node("d1")], "p0", "d1"),
    ("no room for the prompt", SHORT, [node("p0"), node("d0", free_kv_blocks=10)], "p0", "d0"),
    ("without P-heavy instances a full one has to do", SHORT, [node("d0", free_kv_blocks=10)], None, "d0"),
    ("a stale instance is passed over", SHORT, [queued("p0", 500), node("d0", stale=True), queued("d1", 400)], None, "d1"),
    ("one that accepts nothing too", SHORT, [node("p0", accepting=False), queued("d0", 900)], None, "d0"),
]


@pytest.mark.parametrize(
    ("prompt_tokens", "nodes", "prefill", "decode"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_prompt_goes_to_the_feasible_instance_with_the_fewest_queued_tokens(
    prompt_tokens: int, nodes: list[NodeState], prefill: str | None, decode: str
) -> None:
    decision = decide(prompt_tokens, *nodes)
    assert (decision.prefill_node, decision.decode_node) == (prefill, decode)
    assert decision.route is (Route.LOCAL if prefill is None else Route.REMOTE)
    assert decision.reason == FEASIBLE


def test_where_no_instance_is_in_time_the_fewest_queued_tokens_decide() -> None:
    decision = decide(LONG, queued("p0", 50_000), queued("d0", 49_000))
    assert (decision.prefill_node, decision.decode_node, decision.reason) == (None, "d0", INFEASIBLE)


def test_a_small_chunk_counts_its_decodes() -> None:
    decision = decide(SHORT, node("d0", running_decodes=20, kv_tokens=20_000))
    assert decision.schedule is not None
    assert set(decision.schedule.batch_tokens()) == {256}
    assert decision.schedule.steps == -(-SHORT // (256 - 20))


def test_decodes_on_a_p_heavy_instance_delay_its_prompts() -> None:
    alone = decide(LONG, node("p0"), node("d0")).remote_ttft_s
    beside = decide(LONG, node("p0", running_decodes=200, kv_tokens=40_000_000), node("d0")).remote_ttft_s
    assert alone is not None
    assert beside is not None
    assert beside > alone


def test_what_no_d_heavy_instance_can_hold_is_refused() -> None:
    shape = RequestShape(request_id="r", prompt_tokens=2_000_000)
    refusal = BUILT.policy.decide(shape, [node("p0"), node("d0")], 0.0)
    assert isinstance(refusal, Reject)
    assert refusal.reason is RejectReason.KV_TOO_LARGE
    nowhere = BUILT.policy.decide(shape, [node("p0")], 0.0)
    assert isinstance(nowhere, Reject)
    assert nowhere.reason is RejectReason.NO_DECODE_NODE
    assert nowhere.retry_after_s is not None


@settings(max_examples=30, deadline=None)
@given(
    st.permutations(["p0", "p1", "d0", "d1"]), st.integers(1, 20_000), st.lists(st.integers(0, 5000), min_size=4, max_size=4)
)
def test_the_order_of_nodes_changes_nothing(order: list[str], prompt_tokens: int, queues: list[int]) -> None:
    states = {name: queued(name, tokens) for name, tokens in zip(("p0", "p1", "d0", "d1"), queues, strict=True)}
    assert decide(prompt_tokens, *(states[name] for name in order)) == decide(prompt_tokens, *states.values())


def test_the_spec_carries_the_small_chunk() -> None:
    assert parse_taichi("taichi").decode_heavy_chunk_tokens == 256
    assert parse_taichi("taichi:64").decode_heavy_chunk_tokens == 64
    assert build_policy("taichi:64", cluster()).policy.name == "taichi:64"


@pytest.mark.parametrize("spec", ["taichi:", "taichi:0", "taichi:-1", "taichi:x", "taichi:1:2", "taichi2"])
def test_other_specs_are_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"must (be|carry)"):
        build_policy(spec, cluster()) if spec == "taichi2" else parse_taichi(spec)


@pytest.mark.parametrize("field", ["kv_watermark", "tpot_share"])
@pytest.mark.parametrize("value", [0.0, 1.1, float("nan")])
def test_shares_are_checked(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        TaichiSettings(**{field: value})


def test_it_needs_a_profile() -> None:
    with pytest.raises(ConfigError, match="needs a latency profile"):
        build_policy("taichi", cluster(profile=False))
