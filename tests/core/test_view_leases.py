"""What the view makes of leases: when they show, and what is left of them."""

from dataclasses import replace

import pytest

from vllm_kairos.core.events import Dispatched, Ended, LeaseRefused, NodeAdded, NodeReported
from vllm_kairos.core.lease import NodeLease, Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import Route
from vllm_kairos.core.view import ClusterView

SHARE, NEED = Share(1000, 100, 300), Share(300, 40, 100)
LEASE = NodeLease("boot-1", SHARE, until_s=1.5)
D0 = NodeState(
    node_id="d0", role=Role.DECODE, total_kv_blocks=900, free_kv_blocks=800, lease=LEASE, speaks_leases=True, observed_at_s=1.0
)


def view(report: NodeState = D0, age_s: float = 0.0) -> ClusterView:
    made = ClusterView(stale_after_s=1.0, settle_s=0.05)
    made.apply(NodeAdded("d0", Role.DECODE))
    made.apply(NodeReported(report, "boot", report.observed_at_s, age_s))
    return made


def share(made: ClusterView, now_s: float) -> Share | None:
    (node,) = made.nodes(now_s)
    return None if node.lease is None else node.lease.share


def sent(request_id: str, at_s: float, need: Share | None = NEED) -> Dispatched:
    return Dispatched(request_id, Route.LOCAL, None, "d0", 300, at_s, need)


@pytest.mark.parametrize(("now_s", "expected"), [(1.0, SHARE), (1.499, SHARE), (1.5, None), (1.7, None), (2.5, None)])
def test_a_lease_shows_until_it_ends(now_s: float, expected: Share | None) -> None:
    made = view()
    assert share(made, 1.0) == SHARE
    assert share(made, now_s) == expected
    assert made.nodes(now_s)[0].speaks_leases


def test_looking_costs_nothing_until_something_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = view(), view(replace(D0, lease=None))
    for each in (made, plain):
        each.nodes(1.0)
        monkeypatch.setattr(each, "_mark_stale", lambda now_s: pytest.fail("nothing has ended"))
        each.apply(NodeReported(replace(D0, lease=None), "boot", 1.1))
        each.nodes(1.4)


def test_a_node_that_was_silent_for_too_long_has_none() -> None:
    assert share(view(replace(D0, lease=replace(LEASE, until_s=9.0))), 2.0) is None


def test_a_new_report_brings_another_one_or_takes_it_back() -> None:
    made = view()
    made.apply(NodeReported(replace(D0, lease=NodeLease("boot-2", NEED, 1.8)), "boot", 1.3))
    assert share(made, 1.6) == NEED
    made.apply(NodeReported(replace(D0, lease=None), "boot", 1.7))
    assert share(made, 1.7) is None


def test_what_the_report_cannot_show_is_subtracted() -> None:
    made = view()
    for number, at_s in enumerate((0.9, 0.96, 1.1)):  # the first was there when the state was read
        made.apply(sent(f"r{number}", at_s))
    assert share(made, 1.1) == Share(400, 20, 100)
    made.apply(sent("r3", 1.2))
    made.apply(sent("r4", 1.2))
    assert share(made, 1.2) == Share(0, 0, 0)


def test_an_old_state_shows_less() -> None:
    made = view(age_s=0.2)
    made.apply(sent("r0", 0.8))
    assert share(made, 1.1) == Share(700, 60, 200)


def test_what_ended_or_was_sent_under_no_lease_spends_nothing() -> None:
    made = view()
    made.apply(sent("r0", 1.1))
    made.apply(sent("r1", 1.1, need=None))
    made.apply(Ended("r0", 1.2))
    assert share(made, 1.2) == SHARE


def test_a_refused_lease_is_gone_until_the_node_grants_another() -> None:
    made = view()
    made.apply(LeaseRefused("d0", "boot-0"))
    assert share(made, 1.1) == SHARE  # an earlier one
    made.apply(LeaseRefused("d0", "boot-1"))
    assert share(made, 1.1) is None
    made.apply(NodeReported(D0, "boot", 1.2))
    assert share(made, 1.2) is None
    made.apply(NodeReported(replace(D0, lease=replace(LEASE, lease_id="boot-2")), "boot", 1.3))
    assert share(made, 1.3) == SHARE


def test_a_refusal_by_an_unknown_node_changes_nothing() -> None:
    made = view()
    made.apply(LeaseRefused("d9", "boot-1"))
    assert share(made, 1.1) == SHARE
