"""What a lease says."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Share(NamedTuple):
    """An amount of local prefill: what a router may spend, or what a request needs."""

    prefill_tokens: int  # prompt tokens to compute on the node
    kv_blocks: int  # for prompt and expected output
    output_tokens: int  # expected

    def covers(self, need: "Share") -> bool:
        """Whether `need` fits."""
        return (
            need.prefill_tokens <= self.prefill_tokens
            and need.kv_blocks <= self.kv_blocks
            and need.output_tokens <= self.output_tokens
        )

    def without(self, need: "Share") -> "Share":
        """What `need` leaves, at least nothing."""
        return Share(
            max(0, self.prefill_tokens - need.prefill_tokens),
            max(0, self.kv_blocks - need.kv_blocks),
            max(0, self.output_tokens - need.output_tokens),
        )

    def plus(self, more: "Share") -> "Share":
        """Both together."""
        return Share(
            self.prefill_tokens + more.prefill_tokens,
            self.kv_blocks + more.kv_blocks,
            self.output_tokens + more.output_tokens,
        )


NOTHING = Share(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a node grants; it ends `ttl_s` after it was said, by whatever clock."""

    lease_id: str
    epoch: int
    ttl_s: float
    steps: int  # engine steps that the prefill tokens of all shares take
    shares: Mapping[str, Share]  # by router
    transfer_tokens: int = 0  # KV tokens that the node is pulling

    @property
    def total(self) -> Share:
        """All shares together."""
        return Share(*map(sum, zip(*self.shares.values(), strict=True))) if self.shares else NOTHING


@dataclass(frozen=True, slots=True)
class NodeLease:
    """One router's share of a node's lease, as that router believes it to be."""

    lease_id: str
    share: Share
    until_s: float  # the router's clock

    def without(self, need: Share) -> "NodeLease":
        """What `need` leaves of it."""
        return NodeLease(self.lease_id, self.share.without(need), self.until_s)


class LeaseGone(StrEnum):
    """Why a node does not admit a request under the lease that it names."""

    UNKNOWN = "unknown"  # granted by an earlier process, another node, or nobody
    EXPIRED = "expired"
    REVOKED = "revoked"
    SPENT = "spent"  # the router's share does not cover the request
    NOT_YOURS = "not-yours"  # the router has no share
