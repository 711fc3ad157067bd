"""The ledger's rules one by one; `test_lease_model.py` tries to break them together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_kairos.core.lease import LeaseGone, LeaseLedger, Share
from vllm_kairos.core.lease.ledger import MAX_GRANTS
from vllm_kairos.core.lease.terms import Lease
from vllm_kairos.errors import StateError

ROUTERS = ("r1", "r2", "r3")
AMPLE = Share(900, 90, 9000)
HALF = Share(150, 10, 100)  # of one of three routers' share of AMPLE


def ledger() -> LeaseLedger:
    return LeaseLedger("boot1234-5678", ttl_s=0.5)


def grant(book: LeaseLedger, now_s: float, amount: Share = AMPLE, routers: tuple[str, ...] = ROUTERS) -> Lease:
    lease = book.grant(now_s, amount, steps=3, transfer_tokens=7, routers=routers)
    assert lease is not None
    return lease


def test_a_lease_says_what_the_contract_says() -> None:
    lease = grant(ledger(), 0.0)
    assert (lease.lease_id, lease.epoch, lease.ttl_s, lease.steps, lease.transfer_tokens) == ("boot1234-1", 1, 0.5, 3, 7)
    assert lease.shares == dict.fromkeys(ROUTERS, Share(300, 30, 3000))
    assert lease.total == AMPLE


@given(st.tuples(*[st.integers(1, 10**9)] * 3), st.sets(st.text(max_size=4), min_size=1, max_size=7))
def test_shares_are_equal_and_add_up(amounts: tuple[int, int, int], routers: set[str]) -> None:
    lease = ledger().grant(0.0, Share(*amounts), steps=1, transfer_tokens=0, routers=routers)
    assert lease is not None
    assert lease.total == amounts
    for part in zip(*(lease.shares[name] for name in sorted(routers)), strict=True):
        assert list(part) == sorted(part, reverse=True)
        assert max(part) - min(part) <= 1


@pytest.mark.parametrize(
    ("amount", "routers"), [(AMPLE, ()), (Share(0, 1, 1), ROUTERS), (Share(1, 0, 1), ROUTERS), (Share(1, 1, 0), ROUTERS)]
)
def test_nothing_to_grant_leaves_nothing_in_force(amount: Share, routers: tuple[str, ...]) -> None:
    book = ledger()
    first = grant(book, 0.0)
    assert book.grant(0.1, amount, steps=1, transfer_tokens=0, routers=routers) is None
    assert book.current(0.1) is None
    assert book.admit(0.1, first.lease_id, "r1", HALF) is LeaseGone.REVOKED


def test_a_share_is_spent_once() -> None:
    book = ledger()
    lease = grant(book, 0.0)
    assert [book.admit(0.1, lease.lease_id, "r1", HALF) for _ in range(3)] == [None, None, LeaseGone.SPENT]
    assert book.admit(0.1, lease.lease_id, "r2", HALF) is None
    assert book.spent("r1") == Share(300, 20, 200)


@pytest.mark.parametrize("need", [Share(301, 1, 1), Share(1, 31, 1), Share(1, 1, 3001)])
def test_every_part_of_a_share_bounds(need: Share) -> None:
    book = ledger()
    assert book.admit(0.0, grant(book, 0.0).lease_id, "r1", need) is LeaseGone.SPENT


def test_requests_under_a_closing_lease_are_charged_to_all_that_followed() -> None:
    book = ledger()
    first = grant(book, 0.0)
    assert book.admit(0.1, first.lease_id, "r1", HALF) is None
    second = grant(book, 0.2)  # reckons with what was admitted
    assert book.admit(0.3, first.lease_id, "r1", HALF) is None
    assert book.admit(0.3, first.lease_id, "r1", HALF) is LeaseGone.SPENT  # of the first
    assert book.admit(0.3, second.lease_id, "r1", HALF) is None
    assert book.admit(0.3, second.lease_id, "r1", HALF) is LeaseGone.SPENT  # with one under the first


def test_a_closing_lease_covers_no_more_than_the_new_one() -> None:
    book = ledger()
    first = grant(book, 0.0)
    grant(book, 0.1, Share(30, 30, 30))
    assert book.admit(0.2, first.lease_id, "r1", HALF) is LeaseGone.SPENT
    assert book.admit(0.2, first.lease_id, "r1", Share(10, 10, 10)) is None


def test_time_ends_a_lease_but_not_the_ones_after_it() -> None:
    book = ledger()
    first = grant(book, 0.0)
    second = grant(book, 0.4)
    assert book.admit(0.5, first.lease_id, "r1", HALF) is LeaseGone.EXPIRED
    assert book.admit(0.5, second.lease_id, "r1", HALF) is None
    assert book.current(0.9) is None


def test_what_is_said_again_has_less_time_left_and_is_else_the_same() -> None:
    book = ledger()
    lease = grant(book, 0.0)
    book.admit(0.1, lease.lease_id, "r1", HALF)
    again = book.current(0.2)
    assert again is not None
    assert again.ttl_s == pytest.approx(0.3)
    assert (again.lease_id, again.epoch, again.shares) == (lease.lease_id, lease.epoch, lease.shares)


def test_revocation_voids_every_epoch_and_epochs_go_on() -> None:
    book = ledger()
    leases = [grant(book, 0.1 * at) for at in range(3)]
    assert book.revoke()
    assert not book.revoke()
    assert {book.admit(0.3, lease.lease_id, "r1", HALF) for lease in leases} == {LeaseGone.REVOKED}
    assert book.current(0.3) is None
    after = grant(book, 0.3)
    assert after.epoch == 5
    assert book.admit(0.3, after.lease_id, "r1", HALF) is None
    assert book.admit(0.3, leases[0].lease_id, "r1", HALF) is LeaseGone.REVOKED


@pytest.mark.parametrize(
    "lease_id",
    ["", "boot1234", "boot1234-", "boot1234-0", "boot1234-2", "boot1234-01", "other-1", "boot1234-٣", "boot1234--1", "1" * 400],
)
def test_an_id_that_was_never_granted_is_unknown(lease_id: str) -> None:
    book = ledger()
    grant(book, 0.0)
    assert book.admit(0.0, lease_id, "r1", HALF) is LeaseGone.UNKNOWN


def test_a_router_without_a_share_is_told_so() -> None:
    book = ledger()
    lease = grant(book, 0.0, routers=("r1",))
    assert book.admit(0.0, lease.lease_id, "r2", HALF) is LeaseGone.NOT_YOURS
    grant(book, 0.1, routers=("r2",))
    assert book.admit(0.2, lease.lease_id, "r1", HALF) is LeaseGone.SPENT  # it is not known any more


def test_the_last_grants_alone_are_honoured_however_long_they_live() -> None:
    book = LeaseLedger("boot1234-5678", ttl_s=3600.0)
    leases = [grant(book, 0.1 * at) for at in range(MAX_GRANTS + 1)]
    now_s = 0.1 * MAX_GRANTS
    assert book.admit(now_s, leases[0].lease_id, "r1", HALF) is LeaseGone.EXPIRED
    assert book.admit(now_s, leases[1].lease_id, "r1", HALF) is None
    assert book.admit(now_s, leases[-1].lease_id, "r1", HALF) is None
    assert book.admit(now_s, leases[1].lease_id, "r1", HALF) is LeaseGone.SPENT  # by both, of all but the first
    assert book.revoke()
    assert book.admit(now_s, leases[1].lease_id, "r1", HALF) is LeaseGone.REVOKED
    assert grant(book, now_s).epoch == MAX_GRANTS + 3


def test_an_earlier_process_granted_nothing() -> None:
    old = grant(ledger(), 0.0)
    book = LeaseLedger("boot5678", ttl_s=0.5)
    grant(book, 0.0)
    assert book.admit(0.0, old.lease_id, "r1", HALF) is LeaseGone.UNKNOWN


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("nan")])
def test_a_lease_must_live(ttl_s: float) -> None:
    with pytest.raises(StateError, match="ttl_s"):
        LeaseLedger("boot", ttl_s=ttl_s)
