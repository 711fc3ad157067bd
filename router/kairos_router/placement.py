"""Asks the policy where a request goes, given what its earlier attempts have taught."""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from kairos_router import refusal
from kairos_router.failures import Failure
from kairos_router.job import Job, LegFailed
from kairos_router.metrics import RouterMetrics
from kairos_router.pairs import PairBackoff
from kairos_router.registry import Worker, WorkerRegistry
from vllm_kairos.core.decision import Assign, Decision, Reason, Reject, RejectReason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.shapes import Route

DECODE_ONLY_REASONS = {
    Failure.MODEL_MISSING: "prefill-lacks-model",
    Failure.REWRITE_REFUSED: "prefill-refused-rewrite",
}
HANDLE_REASON = "handle-in-hand"


class NodeSource(Protocol):
    """Where the nodes come from."""

    def nodes(self, now_s: float) -> Sequence[NodeState]:
        """Every node, in-flight corrections included."""


class Placement:
    """Every decision passes here, is counted, and is remembered in the request's story."""

    def __init__(
        self,
        *,
        policy: Policy,
        view: NodeSource,
        workers: WorkerRegistry,
        metrics: RouterMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._view = view
        self._workers = workers
        self._metrics = metrics
        self._clock = clock
        self._pairs = PairBackoff()

    def decide(self, job: Job) -> Assign:
        """Return where the next attempt runs; raises Refusal when no node takes it."""
        now_s = self._clock()
        nodes = self._usable(job, self._view.nodes(now_s))
        decision = self._place_handle(job, nodes) or self._choose(job, nodes, now_s)
        if job.lease_refused and isinstance(decision, Reject) and decision.reason is RejectReason.NO_PREFILL_NODE:
            decision = self._without_prefill(job, nodes, now_s)
        job.story.decision = decision
        self._metrics.decision(decision, job.request.model)
        if isinstance(decision, Reject):
            raise refusal.of_reject(decision)
        return decision

    def force_local(self, job: Job, failed: LegFailed) -> None:
        """Have the next attempt run on a decode node whole; the failure becomes the decision's reason."""
        job.shape = replace(job.shape, forced_route=Route.LOCAL, forced_reason=DECODE_ONLY_REASONS[failed.failure])

    def take_prefill(self, job: Job) -> None:
        """Keep the next attempts on the prefill path, as long as there is one: a node's lease was gone."""
        job.lease_refused = True
        job.shape = replace(job.shape, forced_route=Route.REMOTE, forced_reason=Reason.LEASE_GONE)

    def avoid_pair(self, job: Job) -> bool:
        """Avoid the pair of the last attempt for a while; False when this request did so before."""
        decision = job.story.decision
        if job.pair_failed or not isinstance(decision, Assign) or decision.prefill_node is None:
            return False
        job.pair_failed = True
        self._pairs.failed(decision.prefill_node, decision.decode_node, self._clock())
        return True

    def leave_prefill(self, job: Job) -> None:
        """Give no prefill server another leg; the policy decides as if there were none."""
        job.prefill_given_up = True
        job.shape = replace(job.shape, pinned_prefill_node=None)

    def pick_decode(self, *, stateful: bool = False) -> Worker | None:
        """A decode server that takes calls: the least loaded, or always the first by name for `stateful` ones."""
        nodes = self._view.nodes(self._clock())
        best = _first(nodes) if stateful else _least_loaded(nodes)
        return None if best is None else self._workers.resolve(best.node_id)[0]

    def worker(self, name: str) -> Worker | None:
        """The worker called `name`, None when it has been removed."""
        return self._workers.find(name)

    def _choose(self, job: Job, nodes: Sequence[NodeState], now_s: float) -> Decision:
        first = decision = self._policy.decide(job.shape, nodes, now_s)
        if not isinstance(first, Assign) or not self._avoided(first, now_s):
            return first
        for out in ({first.decode_node}, {str(first.prefill_node)}, _prefill_only(nodes)):
            decision = self._policy.decide(job.shape, _without(nodes, out), now_s)
            if isinstance(decision, Assign) and not self._avoided(decision, now_s):
                return decision
        return decision if isinstance(decision, Assign) else first  # a pair that failed may do; a refusal serves nobody

    def _without_prefill(self, job: Job, nodes: Sequence[NodeState], now_s: float) -> Decision:
        """What the policy makes of it where no prefill node takes it."""
        shape = replace(job.shape, forced_route=None, forced_reason="")
        return self._policy.decide(shape, _without(nodes, _prefill_only(nodes)), now_s)

    def _avoided(self, decision: Assign, now_s: float) -> bool:
        prefill = decision.prefill_node
        return prefill is not None and self._pairs.avoided(prefill, decision.decode_node, now_s)

    def _usable(self, job: Job, nodes: Sequence[NodeState]) -> Sequence[NodeState]:
        if not job.left_out and not job.prefill_given_up:
            return nodes
        return _without(nodes, self._left_out(job, nodes))

    def _left_out(self, job: Job, nodes: Sequence[NodeState]) -> set[str]:
        """Nodes this attempt avoids: those that failed it, as long as another of their role takes work."""
        failed = {node.node_id for node in nodes if self._workers.resolve(node.node_id)[0].name in job.left_out}
        out: set[str] = set()
        for plays_role in (_prefills, _decodes):
            able = {node.node_id for node in nodes if node.accepting and plays_role(node)}
            pinned = {job.shape.pinned_prefill_node}
            if able - failed - pinned:
                out |= able & failed - pinned
        if job.prefill_given_up:
            out |= _prefill_only(nodes)
        return out

    def _place_handle(self, job: Job, nodes: Sequence[NodeState]) -> Decision | None:
        """A request whose KV is ready needs a decode node only."""
        if job.handle is None:
            return None
        best = _least_loaded(nodes)
        if best is None:
            return Reject(reason=RejectReason.NO_DECODE_NODE, retry_after_s=1.0)
        return Assign(route=Route.REMOTE, decode_node=best.node_id, prefill_node=job.handle.prefill_node, reason=HANDLE_REASON)


def _least_loaded(nodes: Iterable[NodeState]) -> NodeState | None:
    able = [node for node in nodes if node.accepting and node.role.decodes]
    return min(able, key=lambda node: (node.running_decodes, node.kv_tokens, node.node_id), default=None)


def _without(nodes: Iterable[NodeState], out: AbstractSet[str]) -> Sequence[NodeState]:
    return [replace(node, accepting=False) if node.node_id in out else node for node in nodes]


def _prefill_only(nodes: Iterable[NodeState]) -> set[str]:
    return {node.node_id for node in nodes if not node.role.decodes}


def _first(nodes: Iterable[NodeState]) -> NodeState | None:
    return min((node for node in nodes if node.accepting and node.role.decodes), key=lambda node: node.node_id, default=None)


def _prefills(node: NodeState) -> bool:
    return node.role.prefills


def _decodes(node: NodeState) -> bool:
    return node.role.decodes
