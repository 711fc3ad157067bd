"""What can happen to the router's view of the cluster. All times are the router's own clock, in seconds."""

from dataclasses import dataclass

from vllm_kairos.core.lease.terms import Share
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.shapes import Route


@dataclass(frozen=True, slots=True)
class NodeAdded:
    """A node was registered; nothing is known of its load yet."""

    node_id: str
    role: Role


@dataclass(frozen=True, slots=True)
class NodeRemoved:
    """A node was taken out; its state, links and corrections go."""

    node_id: str


@dataclass(frozen=True, slots=True)
class NodeReported:
    """A node's own state arrived. A new `boot_id` means that it restarted and lost what it was doing."""

    state: NodeState
    boot_id: str
    received_at_s: float
    state_age_s: float = 0.0  # how old the state was when it was sent, by the node's own clock


@dataclass(frozen=True, slots=True)
class AcceptingChanged:
    """Health, breaker or drain opened or closed a node for new work."""

    node_id: str
    accepting: bool


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The router sent a request on its way; `prefill_node` is None when it was deflected.

    `need` is what it spends of the decode node's lease, None when it was sent under none.
    """

    request_id: str
    route: Route
    prefill_node: str | None
    decode_node: str
    prompt_tokens: int
    at_s: float
    need: Share | None = None


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prefill leg answered; the decode leg starts and will pull the KV."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The decode node's first token arrived."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The request finished, failed or was dropped by its client; whichever came first."""

    request_id: str
    at_s: float


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """A decode node did not admit a request under the lease that it was sent with."""

    decode_node: str
    lease_id: str


@dataclass(frozen=True, slots=True)
class TransferObserved:
    """A decode node finished pulling KV from a prefill node."""

    prefill_node: str
    decode_node: str
    transferred_bytes: int
    transfer_s: float


Event = (
    NodeAdded
    | NodeRemoved
    | NodeReported
    | AcceptingChanged
    | Dispatched
    | PrefillDone
    | FirstToken
    | Ended
    | LeaseRefused
    | TransferObserved
)
