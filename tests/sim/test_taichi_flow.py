"""Which decodes flow out of a full D-heavy instance, and which flow back."""

from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.sim.moves import Move, RunningDecode
from vllm_kairos.sim.taichi.flow import FlowingDecodes
from vllm_kairos.sim.taichi.settings import TaichiSettings

FLOW = FlowingDecodes(TaichiSettings(kv_watermark=0.9, tpot_share=0.9))


def node(name: str, used_blocks: int = 0, **state: int | bool) -> NodeState:
    return NodeState(
        node_id=name,
        role=Role.PREFILL if name.startswith("p") else Role.DECODE,
        total_kv_blocks=1000,
        free_kv_blocks=1000 - used_blocks,
        **state,  # type: ignore[arg-type]
    )


def decode(name: str, on: str, *, kv_tokens: int = 799, here: int = 50, tpot_s: float = 0.03) -> RunningDecode:
    return RunningDecode(
        request_id=name,
        node_id=on,
        kv_tokens=kv_tokens,
        output_tokens=here,
        node_tokens=here,
        tpot_s=tpot_s,
        tbt_slo_s=0.07,
    )


def moved(moves: list[Move]) -> list[tuple[str, str]]:
    return [(move.request_id, move.target) for move in moves]


def test_below_the_watermark_nothing_flows() -> None:
    assert FLOW.moves([decode("a", "d0")], [node("p0"), node("d0", 900)], ()) == []


def test_above_it_the_longest_flow_until_it_is_reached() -> None:
    decodes = [decode("short", "d0", here=10), decode("long", "d0", here=90), decode("mid", "d0", here=40)]
    assert moved(FLOW.moves(decodes, [node("p0"), node("d0", 960)], ())) == [("long", "p0"), ("mid", "p0")]


def test_what_is_under_way_counts_as_through() -> None:
    under_way = [Move(request_id="gone", source="d0", target="p0", kv_tokens=999)]
    assert FLOW.moves([decode("a", "d0")], [node("p0"), node("d0", 960)], under_way) == []


def test_decodes_without_slack_stay() -> None:
    decodes = [decode("late", "d0", here=90, tpot_s=0.064), decode("calm", "d0", here=10, tpot_s=0.062)]
    assert moved(FLOW.moves(decodes, [node("p0"), node("d0", 950)], ())) == [("calm", "p0")]


def test_the_roomiest_p_heavy_instance_takes_them_up_to_its_own_watermark() -> None:
    decodes = [decode("a", "d0"), decode("b", "d0", here=40)]
    nodes = [node("p0", 820), node("p1", 860), node("d0", 990)]
    assert moved(FLOW.moves(decodes, nodes, ())) == [("a", "p0")]


def test_full_stale_and_closed_instances_take_none() -> None:
    nodes = [node("p0", stale=True), node("p1", accepting=False), node("p2", max_running_requests=1, running_decodes=1)]
    assert FLOW.moves([decode("a", "d0")], [*nodes, node("d0", 990)], ()) == []


def test_the_most_endangered_flow_back_first() -> None:
    decodes = [decode("near", "p0", tpot_s=0.064), decode("over", "p0", tpot_s=0.08), decode("calm", "p0", tpot_s=0.062)]
    nodes = [node("p0", 500), node("d0", 800), node("d1", 820)]
    assert moved(FLOW.moves(decodes, nodes, ())) == [("over", "d0"), ("near", "d1")]


def test_a_way_back_leads_into_what_the_watermark_keeps_clear_and_pushes_others_out() -> None:
    decodes = [decode("back", "p0", tpot_s=0.065), decode("out", "d0")]
    assert moved(FLOW.moves(decodes, [node("p0", 100), node("d0", 880)], ())) == [("back", "d0"), ("out", "p0")]


def test_without_any_room_nothing_flows_back() -> None:
    assert FLOW.moves([decode("a", "p0", tpot_s=0.07)], [node("p0", 100), node("d0", 980)], ()) == []
