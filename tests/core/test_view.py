"""The view: reports and what was sent since, each counted once, and nothing kept for ever."""

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.events import (
    AcceptingChanged,
    Dispatched,
    Ended,
    FirstToken,
    NodeAdded,
    NodeRemoved,
    NodeReported,
    PrefillDone,
    TransferObserved,
)
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import Route
from vllm_kairos.core.view import ClusterView

P = NodeState(node_id="p", role=Role.PREFILL, total_kv_blocks=1000, free_kv_blocks=1000)
D = NodeState(
    node_id="d",
    role=Role.DECODE,
    running_decodes=5,
    kv_tokens=500,
    total_kv_blocks=1000,
    free_kv_blocks=900,
    kv_bytes_per_token=100,
)


def view(*, reported_at_s: float = 10.0) -> ClusterView:
    made = ClusterView(stale_after_s=1.0, settle_s=0.05)
    for state in (P, D):
        made.apply(NodeAdded(state.node_id, state.role))
        made.apply(NodeReported(state, "boot-1", reported_at_s))
    return made


def at(made: ClusterView, name: str, now_s: float = 10.2) -> NodeState:
    return next(state for state in made.nodes(now_s) if state.node_id == name)


def kept(name: str = "r", at_s: float = 10.1) -> Dispatched:
    return Dispatched(name, Route.REMOTE, "p", "d", 160, at_s)


def deflected(name: str = "r", at_s: float = 10.1) -> Dispatched:
    return Dispatched(name, Route.LOCAL, None, "d", 160, at_s)


def report(made: ClusterView, state: NodeState, at_s: float, boot: str = "boot-1") -> None:
    made.apply(NodeReported(state, boot, at_s))


def test_a_node_is_shown_as_it_reported_itself():
    made = view()
    assert at(made, "p") == replace(P, observed_at_s=10.0)
    assert at(made, "d") == replace(D, observed_at_s=10.0)
    assert [state.node_id for state in made.nodes(10.2)] == ["d", "p"]


def test_a_node_that_never_reported_is_stale_and_not_idle():
    made = ClusterView()
    made.apply(NodeAdded("d", Role.DECODE))
    (state,) = made.nodes(0.0)
    assert state.stale
    assert state.observed_at_s == -inf
    assert state.accepting


def test_a_kept_request_waits_on_its_prefill_node_then_decodes():
    made = view()
    made.apply(kept())
    assert at(made, "p").queued_prompt_tokens == (160,)
    assert at(made, "p").queued_prefill_tokens == 160
    waiting = at(made, "d")
    assert (waiting.expected_decodes, waiting.expected_kv_tokens, waiting.running_decodes) == (1, 160, 5)
    assert waiting.free_kv_blocks == 890
    made.apply(PrefillDone("r", 10.15))
    assert at(made, "p").queued_prompt_tokens == ()
    arriving = at(made, "d")
    assert (arriving.running_decodes, arriving.kv_tokens, arriving.expected_decodes) == (6, 660, 0)
    assert arriving.free_kv_blocks == 890
    assert arriving.links[0].queued_bytes == 16_000


def test_a_report_that_can_show_it_ends_the_correction():
    made = view()
    made.apply(kept())
    made.apply(PrefillDone("r", 10.15))
    early = replace(D, running_decodes=7)
    report(made, early, 10.19)  # less than settle_s later: it may have left before the request arrived
    assert at(made, "d").running_decodes == 8
    report(made, early, 10.21)
    assert at(made, "d", 10.3).running_decodes == 7
    assert at(made, "d", 10.3).free_kv_blocks == 900
    assert at(made, "d", 10.3).links[0].queued_bytes == 16_000
    made.apply(FirstToken("r", 10.3))
    assert at(made, "d", 10.3).links == ()


def test_a_repeated_state_shows_nothing_of_what_arrived_after_it_was_read():
    """A prefill node in a long step repeats the state from before the step."""
    made = view()
    made.apply(kept())
    made.apply(NodeReported(P, "boot-1", 10.5, state_age_s=0.45))
    assert at(made, "p", 10.6).queued_prefill_tokens == 160
    made.apply(NodeReported(P, "boot-1", 10.6, state_age_s=0.02))
    assert at(made, "p", 10.7).queued_prefill_tokens == 0


def test_a_prompt_still_queued_is_counted_once():
    made = view()
    made.apply(kept())
    report(made, replace(P, queued_prompt_tokens=(160,), queued_prefill_tokens=160), 10.2)
    assert at(made, "p", 10.3).queued_prefill_tokens == 160


def test_a_deflection_occupies_its_node_until_the_first_token():
    made = view()
    made.apply(deflected())
    busy = at(made, "d")
    assert (busy.deflected_prefills, busy.deflected_tokens_left, busy.free_kv_blocks) == (1, 160, 890)
    assert (busy.queued_prompt_tokens, busy.prefill_ahead) == ((160,), (1, 160, 160))
    assert busy.running_decodes == 5
    report(made, replace(D, deflected_prefills=1, deflected_tokens_left=100, free_kv_blocks=896), 10.3)
    seen = at(made, "d", 10.4)
    assert (seen.deflected_prefills, seen.deflected_tokens_left) == (1, 100)
    assert seen.free_kv_blocks == 896 - 7  # what is left of the prompt will take its blocks too
    made.apply(FirstToken("r", 10.4))
    free = at(made, "d", 10.4)
    assert (free.deflected_prefills, free.running_decodes, free.kv_tokens) == (0, 6, 660)


def test_a_deflection_that_ended_leaves_the_queue_and_only_once():
    made = view()
    made.apply(deflected())
    report(
        made,
        replace(D, deflected_prefills=1, deflected_tokens_left=100, queued_prompt_tokens=(100, 70), queued_prefill_tokens=170),
        10.3,
    )
    assert at(made, "d", 10.4).prefill_ahead == (2, 170, 100)
    assert at(made, "d", 10.4).free_kv_blocks == D.free_kv_blocks - 11  # for all that is still to be computed
    made.apply(FirstToken("r", 10.4))
    assert at(made, "d", 10.4).queued_prompt_tokens == (70,)
    assert at(made, "d", 10.4).prefill_ahead == (1, 70, 0)


def test_a_slow_deflection_is_not_forgotten_by_reports_that_do_not_show_it():
    made = view()
    made.apply(deflected())
    for step in range(1, 20):
        report(made, D, 10.1 + step / 10)
    assert at(made, "d", 12.0).deflected_prefills == 1


def test_another_routers_deflection_counts_as_well():
    made = view()
    report(made, replace(D, deflected_prefills=1, deflected_tokens_left=50), 10.1)
    assert at(made, "d").deflected_prefills == 1


@pytest.mark.parametrize("dispatched", [kept(), deflected()])
def test_the_end_of_a_request_takes_every_trace_of_it(dispatched):
    for steps in ([], [PrefillDone("r", 10.1)], [PrefillDone("r", 10.1), FirstToken("r", 10.1)]):
        made = view()
        before = made.nodes(10.2)
        for event in (dispatched, *steps, Ended("r", 10.2)):
            made.apply(event)
        assert made.nodes(10.2) == before
        assert made.tracked_requests == 0


def test_case_74_a_silent_node_turns_stale_and_returns_with_its_next_report():
    made = view()
    assert not at(made, "d", 10.99).stale
    assert at(made, "d", 11.0).stale
    assert at(made, "d", 500.0).stale
    report(made, D, 500.1)
    back = at(made, "d", 500.2)
    assert not back.stale
    assert back.running_decodes == 5


def test_case_69_a_stale_node_shows_its_sizes_and_the_routers_own_load():
    made = view()
    made.apply(kept("a"))
    made.apply(PrefillDone("a", 10.1))
    report(made, replace(D, running_decodes=50), 10.5)
    lost = at(made, "d", 20.0)
    assert lost.stale
    assert (lost.running_decodes, lost.total_kv_blocks, lost.free_kv_blocks) == (1, 1000, 990)


def test_case_x4_a_nodes_own_clock_says_nothing_about_freshness():
    made = view()
    report(made, replace(D, observed_at_s=3600.0), 10.5)
    assert at(made, "d", 11.0).observed_at_s == 10.5
    assert at(made, "d", 11.5).stale
    report(made, replace(D, observed_at_s=-3600.0), 12.0)
    assert not at(made, "d", 12.1).stale


def test_a_restarted_node_loses_what_its_old_process_had():
    made = view()
    made.apply(deflected("old"))
    report(made, replace(D, running_decodes=0, kv_tokens=0, free_kv_blocks=1000), 10.9, boot="boot-2")
    assert at(made, "d", 11.0).deflected_prefills == 0
    assert at(made, "d", 11.0).free_kv_blocks == 1000
    made.apply(FirstToken("old", 11.0))
    assert at(made, "d", 11.0).running_decodes == 0
    made.apply(Ended("old", 11.1))
    assert made.tracked_requests == 0


def test_a_restart_keeps_what_is_still_to_come_and_what_was_just_sent():
    made = view()
    made.apply(kept("waiting"))
    made.apply(deflected("fresh", 10.88))
    report(made, D, 10.9, boot="boot-2")
    state = at(made, "d", 11.0)
    assert state.expected_decodes == 1
    assert state.deflected_prefills == 1


def test_a_late_report_of_the_old_process_is_ignored():
    made = view()
    report(made, replace(D, running_decodes=1), 10.2, boot="boot-2")
    report(made, replace(D, running_decodes=9), 10.3, boot="boot-1")
    assert at(made, "d", 10.4).running_decodes == 1


def test_a_report_out_of_order_is_ignored():
    made = view()
    report(made, replace(D, running_decodes=1), 9.0)
    assert at(made, "d").running_decodes == 5


def test_what_happens_to_unknown_nodes_and_requests_changes_nothing():
    made = view()
    before = made.nodes(10.2)
    for event in (
        NodeReported(replace(D, node_id="ghost"), "b", 10.1),
        NodeRemoved("ghost"),
        AcceptingChanged("ghost", False),
        PrefillDone("ghost", 10.1),
        FirstToken("ghost", 10.1),
        Ended("ghost", 10.1),
        TransferObserved("ghost", "d", 10, 1.0),
        TransferObserved("p", "d", 0, 1.0),
        TransferObserved("p", "d", 10, 0.0),
        TransferObserved("p", "d", 10, inf),
        TransferObserved("p", "d", 10, 1e308),
    ):
        made.apply(event)
    assert made.nodes(10.2) == before


def test_transfers_measure_a_pairs_bandwidth_by_bytes():
    made = view()
    made.apply(TransferObserved("p", "d", 1000, 1.0))
    assert at(made, "d").links[0].bandwidth_bytes_per_s == 1000
    made.apply(TransferObserved("p", "d", 1, 0.001))  # a tiny one says little
    assert at(made, "d").links[0].bandwidth_bytes_per_s == pytest.approx(1000, rel=0.01)
    for _ in range(30):
        made.apply(TransferObserved("p", "d", 8000, 1.0))
    assert at(made, "d").links[0].bandwidth_bytes_per_s == pytest.approx(8000, rel=0.01)
    made.apply(NodeRemoved("p"))
    assert at(made, "d").links == ()


def test_a_removed_node_goes_with_its_requests_and_may_come_back():
    made = view()
    made.apply(kept())
    made.apply(NodeRemoved("d"))
    assert [state.node_id for state in made.nodes(10.2)] == ["p"]
    made.apply(NodeAdded("d", Role.DECODE))
    assert at(made, "d").expected_decodes == 0
    assert at(made, "p").queued_prompt_tokens == (160,)
    made.apply(Ended("r", 10.3))
    assert made.tracked_requests == 0


def test_a_node_is_taken_for_what_it_was_registered_as_and_can_be_closed():
    made = view()
    made.apply(NodeAdded("d", Role.BOTH))
    made.apply(AcceptingChanged("d", False))
    assert at(made, "d").role is Role.BOTH
    assert not at(made, "d").accepting
    report(made, D, 10.2)
    assert not at(made, "d").accepting


def test_a_retry_under_the_same_id_replaces_the_first_try():
    made = view()
    made.apply(kept())
    made.apply(Dispatched("r", Route.LOCAL, None, "d", 160, 10.12))
    assert at(made, "p").queued_prompt_tokens == ()
    assert at(made, "d").deflected_prefills == 1
    assert made.tracked_requests == 1


def test_only_what_changed_is_worked_out_anew():
    made = view()
    first = {state.node_id: state for state in made.nodes(10.2)}
    assert made.nodes(10.3) is made.nodes(10.2)
    report(made, replace(D, running_decodes=6), 10.3)
    second = {state.node_id: state for state in made.nodes(10.4)}
    assert second["p"] is first["p"]
    assert second["d"].running_decodes == 6


def test_case_75_no_map_grows_over_20_000_requests_of_which_a_tenth_breaks_off():
    rng, made = random.Random(5), view()
    before = made.nodes(10.2)
    for number in range(20_000):
        name = str(number)
        route = rng.choice([Route.LOCAL, Route.REMOTE])
        made.apply(Dispatched(name, route, "p" if route is Route.REMOTE else None, "d", 100, 10.1))
        if rng.random() > 0.1:
            made.apply(PrefillDone(name, 10.1))
            made.apply(FirstToken(name, 10.1))
        made.apply(Ended(name, 10.1))
    assert made.tracked_requests == 0
    assert made.nodes(10.2) == before


@given(st.data())
def test_the_kept_view_equals_one_built_at_once(data):
    """Whatever the order of events and reads, nothing is left over in what was worked out before."""
    events, now_s = [], 10.0
    for number in range(data.draw(st.integers(0, 12))):
        now_s += data.draw(st.sampled_from([0.0, 0.02, 0.3]))
        name = str(data.draw(st.integers(0, 3)))
        kinds = [
            kept(name, now_s),
            deflected(name, now_s),
            PrefillDone(name, now_s),
            FirstToken(name, now_s),
            Ended(name, now_s),
            NodeReported(replace(D, running_decodes=number), data.draw(st.sampled_from(["boot-1", "boot-2"])), now_s),
            NodeReported(P, "boot-1", now_s),
            NodeRemoved("d"),
            NodeAdded("d", Role.DECODE),
            TransferObserved("p", "d", 100, 0.1),
        ]
        events.append((data.draw(st.sampled_from(kinds)), now_s))
    read_often, read_once = view(), view()
    for event, at_s in events:
        read_often.apply(event)
        read_often.nodes(at_s)
        read_once.apply(event)
    assert read_often.nodes(now_s) == read_once.nodes(now_s)
    assert all(0 <= state.free_kv_blocks <= state.total_kv_blocks for state in read_once.nodes(now_s))
