"""What a policy answers: an assignment with its predictions, or a refusal with its reason."""

from dataclasses import dataclass, field
from enum import StrEnum

from vllm_kairos.core.chunking import ChunkSchedule
from vllm_kairos.core.lease.terms import Share
from vllm_kairos.core.shapes import Route


class Reason(StrEnum):
    """Why a request went where it went; also the `reason` label of the decision counters."""

    # deflected
    SOONER = "sooner"  # the decode path has the earlier first token
    WITHIN_MARGIN = "within-margin"  # later, but by less than it is worth to relieve the queue
    PREFILL_UNAVAILABLE = "prefill-unavailable"  # no prefill node accepts work
    THRESHOLD = "threshold"  # a static policy's rule said local
    ALWAYS = "policy-always"
    # kept on the prefill path
    PREFILL_SOONER = "prefill-sooner"
    OVER_TTFT_SLO = "over-ttft-slo"  # the decode path would miss the TTFT objective
    TBT_UNSAFE = "tbt-unsafe"  # no chunk keeps the running decodes within TBT
    DEFLECTION_BUSY = "deflection-busy"  # every decode node has its one deflected prefill
    NO_LEASE = "no-lease"  # no decode node grants what the prompt needs
    LEASE_GONE = "lease-gone"  # the decode node no longer grants what the prompt was sent under
    KV_FULL = "kv-full"  # no decode node has the KV blocks free
    SLOTS_FULL = "slots-full"  # every decode node runs as many requests as it may
    STATE_STALE = "state-stale"  # no decode node has fresh state
    BELOW_RULE = "rule-not-met"  # a static policy's rule said remote
    NEVER = "policy-never"
    PINNED = "pinned"  # the caller named the prefill node
    # either, when the caller forced the route without saying why
    FORCED = "forced"


class RejectReason(StrEnum):
    """Why no node takes a request."""

    NO_PREFILL_NODE = "no-prefill-node"
    NO_DECODE_NODE = "no-decode-node"
    KV_TOO_LARGE = "kv-too-large"  # larger than any decode node's whole KV cache: never retry
    NO_SAFE_NODE = "no-safe-node"  # prefill is gone and deflecting would break TBT: retry later
    UNKNOWN_NODE = "unknown-node"  # the pinned node is not registered


class Verdict(StrEnum):
    """What the decision made of one node."""

    CHOSEN = "chosen"
    FEASIBLE = "feasible"
    TBT_UNSAFE = "tbt-unsafe"
    KV_FULL = "kv-full"
    SLOTS_FULL = "slots-full"
    DEFLECTION_BUSY = "deflection-busy"
    NO_LEASE = "no-lease"
    STALE = "stale"
    NOT_ACCEPTING = "not-accepting"
    WRONG_ROLE = "wrong-role"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a deflected request spends, and of which lease of its decode node."""

    lease_id: str
    need: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Run the request here. LOCAL: `prefill_node` is None and `schedule` says how.

    With a `claim` the decode node may refuse it before any work, and the request goes to the prefill path instead.
    """

    route: Route
    decode_node: str
    prefill_node: str | None
    reason: Reason | str
    schedule: ChunkSchedule | None = None
    claim: Claim | None = None
    remote_ttft_s: float | None = None  # predicted on the prefill path, None: no prediction made
    local_ttft_s: float | None = None  # predicted on the best decode node, None: none feasible
    state_age_s: float | None = None  # age of the oldest input the decision used
    in_fitted_range: bool = True

    @property
    def predicted_ttft_s(self) -> float | None:
        """The prediction for the path that was chosen."""
        return self.local_ttft_s if self.route is Route.LOCAL else self.remote_ttft_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """No node takes it; `retry_after_s` None means that trying again cannot help."""

    reason: RejectReason
    detail: str = ""
    retry_after_s: float | None = None


Decision = Assign | Reject


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVerdict:
    """One decode or prefill node's line in an explanation."""

    node_id: str
    role: str
    verdict: Verdict
    ttft_s: float | None = None
    step_s: float | None = None  # predicted step without the prompt (decode nodes)
    worst_step_s: float | None = None  # predicted longest step while the prompt runs (decode nodes)
    queue_s: float | None = None  # predicted wait before the prompt starts (decode nodes: None where nothing is queued)
    schedule: ChunkSchedule | None = None
    lease: Share | None = None  # what this router may still spend there
    state_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A decision together with what it made of every node."""

    decision: Decision
    nodes: tuple[NodeVerdict, ...] = field(default=())
