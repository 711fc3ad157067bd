"""One engine as the router believes it to be."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NoReturn

from vllm_kairos.core.lease.terms import NodeLease
from vllm_kairos.errors import StateError


class Role(StrEnum):
    """Which phase a node was started for."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        return self is not Role.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """The KV path from one prefill node into the decode node that holds this value."""

    prefill_node: str
    bandwidth_bytes_per_s: float | None = None  # None: not measured yet
    latency_s: float = 0.0
    queued_bytes: int = 0

    def __post_init__(self) -> None:
        if self.bandwidth_bytes_per_s is not None and not self.bandwidth_bytes_per_s > 0:
            value = self.bandwidth_bytes_per_s
            raise StateError(f"link from {self.prefill_node!r}: bandwidth_bytes_per_s must be > 0, got {value}")
        for name in ("latency_s", "queued_bytes"):
            if getattr(self, name) < 0:
                raise StateError(f"link from {self.prefill_node!r}: {name} must be >= 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """One engine at `observed_at_s` (the router's receipt time), in-flight corrections included.

    `stale` says that no report arrived in time: a stale node is not an idle node.
    """

    node_id: str
    role: Role
    running_decodes: int = 0  # B
    kv_tokens: int = 0  # K: KV tokens held by the running decodes
    queued_prompt_tokens: tuple[int, ...] = ()  # prompts ahead of a new one, deflected ones too, in order; tokens left of each
    queued_prefill_tokens: int = 0  # their total, also where the tuple was capped
    token_budget_tokens: int = 2048  # chi_p
    max_running_requests: int = 256
    block_size_tokens: int = 16
    free_kv_blocks: int = 0
    total_kv_blocks: int = 0
    kv_bytes_per_token: int = 0
    remote_kv_requests: int = 0  # requests waiting for remote KV
    remote_kv_tokens: int = 0
    expected_decodes: int = 0  # sent here by the router, still on their prefill node
    expected_kv_tokens: int = 0
    deflected_prefills: int = 0
    deflected_tokens_left: int = 0  # part of queued_prefill_tokens
    links: tuple[LinkState, ...] = ()
    lease: NodeLease | None = None  # this router's share; None: it has none, or the node speaks of none
    speaks_leases: bool = False
    accepting: bool = True  # False: draining, unhealthy or its breaker is open
    stale: bool = False
    observed_at_s: float = 0.0  # -inf: never
    # Derived; the decision asks for them of every node, so they are worked out once per state.
    fastest_link_bytes_per_s: float = field(init=False, repr=False, compare=False, default=0.0)
    links_from: Mapping[str, LinkState] = field(init=False, repr=False, compare=False, default_factory=dict)
    measured_links: frozenset[str] = field(init=False, repr=False, compare=False, default=frozenset())
    decode_load: tuple[int, int] = field(init=False, repr=False, compare=False, default=(0, 0))
    coming_load: tuple[int, int] = field(init=False, repr=False, compare=False, default=(0, 0))
    used_kv_tokens: int = field(init=False, repr=False, compare=False, default=0)
    prefill_ahead: tuple[int, int, int] = field(init=False, repr=False, compare=False, default=(0, 0, 0))

    def __post_init__(self) -> None:
        # Spelled out: the view builds one for every node that a request touches.
        counts = (
            self.running_decodes,
            self.kv_tokens,
            self.queued_prefill_tokens,
            self.free_kv_blocks,
            self.total_kv_blocks,
            self.kv_bytes_per_token,
            self.remote_kv_requests,
            self.remote_kv_tokens,
            self.expected_decodes,
            self.expected_kv_tokens,
            self.deflected_prefills,
            self.deflected_tokens_left,
        )
        sizes = self.token_budget_tokens, self.block_size_tokens, self.max_running_requests
        if min(counts) < 0 or min(sizes) < 1 or self.free_kv_blocks > self.total_kv_blocks:
            self._refuse()
        self._derive()

    def _derive(self) -> None:
        put = object.__setattr__
        # Decodes that only wait for their KV run within milliseconds: they count in B and K.
        decodes, kv_tokens = self.running_decodes + self.remote_kv_requests, self.kv_tokens + self.remote_kv_tokens
        put(self, "decode_load", (decodes, kv_tokens))
        put(self, "coming_load", (decodes + self.expected_decodes, kv_tokens + self.expected_kv_tokens))
        put(self, "used_kv_tokens", (self.total_kv_blocks - self.free_kv_blocks) * self.block_size_tokens)
        # Prompts, tokens and how many of these are deflected. Some sources leave the deflected ones out of the queue.
        tokens = max(self.queued_prefill_tokens, self.deflected_tokens_left)
        if tokens:
            prompts = max(1, len(self.queued_prompt_tokens), self.deflected_prefills)
            put(self, "prefill_ahead", (prompts, tokens, self.deflected_tokens_left))
        if self.links:
            rates = {link.prefill_node: link.bandwidth_bytes_per_s for link in self.links if link.bandwidth_bytes_per_s}
            put(self, "links_from", {link.prefill_node: link for link in self.links})
            put(self, "fastest_link_bytes_per_s", max(rates.values(), default=0.0))
            put(self, "measured_links", frozenset(rates))

    def _refuse(self) -> NoReturn:
        """Raise the StateError that names the field, the rule and the value."""
        for names, least in ((_COUNTS, 0), (_SIZES, 1)):
            for name in names:
                value = getattr(self, name)
                if value < least:
                    raise StateError(f"node {self.node_id!r}: {name} must be >= {least}, got {value}")
        free, total = self.free_kv_blocks, self.total_kv_blocks
        raise StateError(f"node {self.node_id!r}: free_kv_blocks must be <= total_kv_blocks, got {free} > {total}")

    def seen_as(
        self, *, role: Role, accepting: bool, stale: bool, leased: bool, observed_at_s: float, links: tuple[LinkState, ...]
    ) -> "NodeState":
        """Return this report with what its receiver knows better; a stale one keeps what it is, not what it was doing."""
        idle = stale  # spelled out like the checks: `replace` takes three times as long, and a report comes often
        return NodeState(
            node_id=self.node_id,
            role=role,
            running_decodes=0 if idle else self.running_decodes,
            kv_tokens=0 if idle else self.kv_tokens,
            queued_prompt_tokens=() if idle else self.queued_prompt_tokens,
            queued_prefill_tokens=0 if idle else self.queued_prefill_tokens,
            token_budget_tokens=self.token_budget_tokens,
            max_running_requests=self.max_running_requests,
            block_size_tokens=self.block_size_tokens,
            free_kv_blocks=self.total_kv_blocks if idle else self.free_kv_blocks,
            total_kv_blocks=self.total_kv_blocks,
            kv_bytes_per_token=self.kv_bytes_per_token,
            remote_kv_requests=0 if idle else self.remote_kv_requests,
            remote_kv_tokens=0 if idle else self.remote_kv_tokens,
            deflected_prefills=0 if idle else self.deflected_prefills,
            deflected_tokens_left=0 if idle else self.deflected_tokens_left,
            lease=self.lease if leased and not idle else None,
            speaks_leases=self.speaks_leases,
            links=links,
            accepting=accepting,
            stale=stale,
            observed_at_s=observed_at_s,
        )

    def kv_blocks_for(self, tokens: int) -> int:
        """KV blocks that `tokens` tokens occupy on this node."""
        return -(-tokens // self.block_size_tokens)


_COUNTS = (
    "running_decodes",
    "kv_tokens",
    "queued_prefill_tokens",
    "free_kv_blocks",
    "total_kv_blocks",
    "kv_bytes_per_token",
    "remote_kv_requests",
    "remote_kv_tokens",
    "expected_decodes",
    "expected_kv_tokens",
    "deflected_prefills",
    "deflected_tokens_left",
)
_SIZES = ("token_budget_tokens", "block_size_tokens", "max_running_requests")
