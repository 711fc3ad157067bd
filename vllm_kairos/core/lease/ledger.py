"""What a node has granted and what was spent of it. The node's word is the last one; no clock is compared with another."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from vllm_kairos.core.lease.terms import NOTHING, Lease, LeaseGone, Share
from vllm_kairos.errors import StateError

MAX_GRANTS = 512
"""How many are honoured at a time: with the default heartbeat, those of 51 s."""


@dataclass(slots=True)
class _Grant:
    """One epoch: what it granted, and what was admitted since, under whatever epoch."""

    lease: Lease
    until_s: float
    spent: dict[str, Share] = field(default_factory=dict)

    def has_room(self, router: str, need: Share) -> bool:
        share = self.lease.shares.get(router, NOTHING)
        return share.covers(self.spent.get(router, NOTHING).plus(need))

    def charge(self, router: str, need: Share) -> None:
        self.spent[router] = self.spent.get(router, NOTHING).plus(need)


class LeaseLedger:
    """Grants leases, admits requests under them and revokes them. `now_s` is any clock that never goes back.

    A new grant replaces the one before it. What routers sent under an earlier one is honoured until that one's time is
    over, or `MAX_GRANTS` followed, at the expense of all granted since: what a node admits after a grant never exceeds
    that grant.
    """

    def __init__(self, boot_id: str, *, ttl_s: float) -> None:
        if not ttl_s > 0:
            raise StateError(f"lease: ttl_s must be > 0, got {ttl_s}")
        self._prefix, self._ttl_s = boot_id[:8], ttl_s
        self._epoch = self._revoked_epoch = 0
        self._grants: list[_Grant] = []  # in force, of epochs that follow on each other, the current one last

    def grant(
        self, now_s: float, capacity: Share, *, steps: int, transfer_tokens: int, routers: Collection[str]
    ) -> Lease | None:
        """Divide `capacity` equally among `routers`, for a new epoch; what does not divide goes to the first by id.

        None, and nothing is in force any more, where there is no router or nothing of some part of `capacity`.
        """
        if not routers or min(capacity) < 1:
            self.revoke()
            return None
        self._forget_expired(now_s)
        del self._grants[: 1 - MAX_GRANTS]
        self._epoch += 1
        lease = Lease(
            lease_id=f"{self._prefix}-{self._epoch}",
            epoch=self._epoch,
            ttl_s=self._ttl_s,
            steps=steps,
            shares=_divided(capacity, routers),
            transfer_tokens=transfer_tokens,
        )
        self._grants.append(_Grant(lease, now_s + self._ttl_s))
        return lease

    def admit(self, now_s: float, lease_id: str, router: str, need: Share) -> LeaseGone | None:
        """Charge `need` to the share of `router`; None when there was room, else why nothing was charged."""
        self._forget_expired(now_s)
        charged = self._granted_from(lease_id)
        if not charged:
            return self._why_gone(lease_id)
        if router not in charged[0].lease.shares:
            return LeaseGone.NOT_YOURS
        if not all(grant.has_room(router, need) for grant in charged):
            return LeaseGone.SPENT
        for grant in charged:
            grant.charge(router, need)
        return None

    def revoke(self) -> bool:
        """Void all that was granted; True when something was in force, its time aside."""
        if not self._grants:
            return False
        self._grants.clear()
        self._epoch += 1
        self._revoked_epoch = self._epoch
        return True

    def current(self, now_s: float) -> Lease | None:
        """The lease in force with what is left of its time; its shares are those granted, spent or not."""
        if not self._grants or (left_s := self._grants[-1].until_s - now_s) <= 0:
            return None
        lease = self._grants[-1].lease
        return Lease(
            lease_id=lease.lease_id,
            epoch=lease.epoch,
            ttl_s=left_s,
            steps=lease.steps,
            shares=lease.shares,
            transfer_tokens=lease.transfer_tokens,
        )

    def spent(self, router: str) -> Share:
        """What was admitted from `router` since the current lease was granted."""
        return self._grants[-1].spent.get(router, NOTHING) if self._grants else NOTHING

    def _forget_expired(self, now_s: float) -> None:
        while self._grants and self._grants[0].until_s <= now_s:
            del self._grants[0]

    def _granted_from(self, lease_id: str) -> list[_Grant]:
        """What is in force of the grant `lease_id` and all since; nothing where that one is not."""
        epoch = self._epoch_of(lease_id)
        at = epoch - self._grants[0].lease.epoch if epoch is not None and self._grants else -1
        return self._grants[at:] if at >= 0 else []

    def _epoch_of(self, lease_id: str) -> int | None:
        """The epoch that `lease_id` names, of those that there were so far."""
        prefix, _, digits = lease_id.rpartition("-")
        known = prefix == self._prefix and digits.isascii() and digits.isdecimal() and digits[0] != "0" and len(digits) < 19
        return int(digits) if known and int(digits) <= self._epoch else None

    def _why_gone(self, lease_id: str) -> LeaseGone:
        epoch = self._epoch_of(lease_id)
        if epoch is None:
            return LeaseGone.UNKNOWN
        return LeaseGone.REVOKED if epoch <= self._revoked_epoch else LeaseGone.EXPIRED


def _divided(capacity: Share, routers: Collection[str]) -> Mapping[str, Share]:
    names = sorted(set(routers))
    parts = [divmod(amount, len(names)) for amount in capacity]
    return {name: Share(*(whole + (at < rest) for whole, rest in parts)) for at, name in enumerate(names)}
