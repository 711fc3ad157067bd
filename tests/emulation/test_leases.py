"""Blocks are kept until pulled or expired, and given back exactly once."""

from vllm_kairos.emulation.leases import LeaseTable


def _leased(*request_ids: str) -> LeaseTable:
    table = LeaseTable()
    table.track(request_ids)
    for request_id in request_ids:
        table.lease(request_id, 30.0)
    return table


def test_pulled_blocks_are_free_once() -> None:
    table = _leased("a", "b")
    assert table.release("a")
    assert not table.release("a")
    assert table.take_ended(1.0) == ({"a"}, set())
    assert table.take_ended(1.0) == (set(), set())
    assert not table.holds("a")
    assert table.holds("b")


def test_a_lease_ends_by_itself() -> None:
    table = _leased("a")
    assert table.take_ended(29.9) == (set(), set())
    assert table.take_ended(30.0) == (set(), {"a"})
    assert not table.release("a")


def test_a_heartbeat_extends_and_never_shortens() -> None:
    table = _leased("a", "b")
    table.extend(["a", "unknown"], 50.0)
    table.extend(["b"], 10.0)
    assert table.take_ended(30.0) == (set(), {"b"})
    assert table.take_ended(50.0) == (set(), {"a"})


def test_a_pull_may_come_before_the_lease() -> None:
    table = LeaseTable()
    table.track(["a"])
    assert table.release("a")
    table.lease("a", 30.0)
    assert table.take_ended(31.0) == ({"a"}, set())


def test_an_aborted_request_is_not_kept() -> None:
    table = LeaseTable()
    table.track(["a"])
    table.forget(["a"])
    assert not table.holds("a")
