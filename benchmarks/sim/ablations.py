"""`kairos` with one thing taken away or changed at a time; none of these is offered by the product."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from benchmarks.sim.grid import Arm
from vllm_kairos.core import events
from vllm_kairos.core.chunking import ChunkRun, ChunkSchedule, Planned
from vllm_kairos.core.decision import Reason
from vllm_kairos.core.node import NodeState
from vllm_kairos.core.policies.kairos import Kairos
from vllm_kairos.core.policies.locals import SafeLocals
from vllm_kairos.core.policies.pairs import Pair
from vllm_kairos.core.policies.pools import Pools, fresh_with_room, kv_need_tokens
from vllm_kairos.core.policies.routing import Choice, Routing
from vllm_kairos.core.policy import Policy
from vllm_kairos.core.settings import DecisionSettings
from vllm_kairos.core.shapes import RequestShape
from vllm_kairos.core.view import ClusterView
from vllm_kairos.sim.cluster_spec import ClusterSpec, RouterSpec

_INSTANT_BYTES_PER_S = 1e18
_MOST_SLOTS = 0.9


@dataclass(frozen=True, slots=True)
class ChiServed(SafeLocals):
    """The paper's Algorithm 1 to the letter: a step of chi total tokens is taken to compute chi prompt tokens."""

    def _build(self, request: RequestShape, node: NodeState, load: tuple[int, int]) -> Planned | None:
        decodes, kv_tokens = load
        limit_s = self.settings.beta * request.tbt_slo_s if decodes else inf
        served, chosen, steps_s = 0, list[int](), list[float]()
        while served < request.prompt_tokens:
            found = self._largest_safe(decodes, kv_tokens + served, served, limit_s)
            if found is None:
                return None
            chosen.append(found[0])
            steps_s.append(found[1])
            served += found[0]
        runs = tuple(ChunkRun(chi, len(list(same))) for chi, same in groupby(chosen))
        return Planned(schedule=ChunkSchedule(runs), ttft_s=sum(steps_s), worst_step_s=max(steps_s), in_range=True)

    def _largest_safe(self, decodes: int, kv_tokens: int, served: int, limit_s: float) -> tuple[int, float] | None:
        for chi in self.settings.chunk_candidates_tokens:
            if chi <= decodes:
                return None
            step_s = self.model.latency_s(decodes, kv_tokens, chi - decodes, served)
            if step_s <= limit_s:
                return chi, step_s
        return None


@dataclass(frozen=True, slots=True)
class MarginOfWhole(Kairos):
    """Eq. 7 to the letter: deflect up to alpha times the whole TTFT of the prefill path."""

    def _margin_s(self, pair: Pair) -> float:
        assert pair.ttft_s is not None
        return (self.routing.settings.alpha - 1) * pair.ttft_s


@dataclass(frozen=True, slots=True)
class LateIfSooner(Kairos):
    """A deflection past the TTFT objective is taken too where the prefill path would be later still."""

    def by_prediction(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        """Choose by its rule."""
        choice = Kairos.by_prediction(self, request, pools, pair)
        local = choice.local
        if choice.reason is not Reason.OVER_TTFT_SLO or local is None or local.ttft_s is None or pair.ttft_s is None:
            return choice
        return Choice(Reason.SOONER, local, deflect=True) if local.ttft_s <= pair.ttft_s else choice


@dataclass(frozen=True, slots=True)
class ManyPerNode(LateIfSooner):
    """Besides, a node that runs a deflected prefill may take another behind it, as under `oracle`."""

    def by_prediction(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        """Choose by its rule."""
        roomy = fresh_with_room(pools.decodes, kv_need_tokens(request, self.routing.settings))
        nodes = [node for node in roomy if node.decode_load[0] + node.prefill_ahead[0] < node.max_running_requests]
        return LateIfSooner.by_prediction(self, request, replace(pools, deflectable=nodes), pair)


@dataclass(frozen=True, slots=True)
class SlotsForExpected(Kairos):
    """Decode nodes whose slots will be nearly all taken, with those whose prompts are still on a prefill node, are left out."""

    def by_prediction(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        """Choose by its rule."""
        nodes = [node for node in pools.deflectable if node.coming_load[0] < _MOST_SLOTS * node.max_running_requests]
        blocked = pools.blocked if nodes or not pools.deflectable else Reason.SLOTS_FULL
        return Kairos.by_prediction(self, request, replace(pools, deflectable=nodes, blocked=blocked), pair)


class DeafView(ClusterView):
    """A view that does not hear of some kinds of event."""

    def __init__(self, spec: RouterSpec, *deaf_to: type[events.Event]) -> None:
        super().__init__(stale_after_s=spec.stale_after_s, settle_s=spec.settle_s)
        self._deaf_to = deaf_to

    def apply(self, event: events.Event) -> None:
        """Take in `event` unless it is of a kind not heard."""
        if not isinstance(event, self._deaf_to):
            super().apply(event)


def _variant(policy: type[Kairos], locals_: type[SafeLocals] = SafeLocals) -> Callable[[ClusterSpec], Policy]:
    """Build `policy` for a cluster as the registry builds `kairos`."""

    def make(cluster: ClusterSpec) -> Policy:
        assert cluster.decode_model is not None
        routing = Routing(cluster.settings, cluster.prefill_model, cluster.decode_model)
        return policy(routing, locals_(cluster.decode_model, cluster.settings))

    return make


def _no_transfers(spec: RouterSpec) -> ClusterView:
    return DeafView(spec, events.TransferObserved)


def _reports_only(spec: RouterSpec) -> ClusterView:
    return DeafView(spec, events.Dispatched)


_PLAIN, _ROUTER = DecisionSettings(), RouterSpec()
_FINER = (2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64)
_INSTANT = replace(_PLAIN, default_bandwidth_bytes_per_s=_INSTANT_BYTES_PER_S)

ABLATIONS: Mapping[str, Arm] = {
    "no-transfer-term": Arm(spec="kairos", settings=_INSTANT, view=_no_transfers),
    "chi-counted-as-served": Arm(spec="kairos", make=_variant(Kairos, ChiServed)),
    "no-in-flight-correction": Arm(spec="kairos", view=_reports_only),
    "alpha-of-whole-ttft": Arm(spec="kairos", make=_variant(MarginOfWhole)),
    "alpha-1.0": Arm(spec="kairos", settings=replace(_PLAIN, alpha=1.0)),
    "beta-0.8": Arm(spec="kairos", settings=replace(_PLAIN, beta=0.8)),
    "beta-1.0": Arm(spec="kairos", settings=replace(_PLAIN, beta=1.0)),
    "heartbeat-0.5s": Arm(spec="kairos", router=replace(_ROUTER, heartbeat_period_s=0.5)),
    "loss-10%": Arm(spec="kairos", router=replace(_ROUTER, heartbeat_loss=0.1)),
    "late-if-sooner": Arm(spec="kairos", make=_variant(LateIfSooner)),
    "four-per-node": Arm(spec="kairos", settings=replace(_PLAIN, deflections_per_node=4)),
    "many-per-node": Arm(spec="kairos", make=_variant(ManyPerNode)),
    "finer-chunks": Arm(spec="kairos", settings=replace(_PLAIN, chunk_candidates_tokens=_FINER)),
    "slot-share-1.0": Arm(spec="kairos", settings=replace(_PLAIN, deflection_slot_share=1.0)),
    "slots-for-expected": Arm(spec="kairos", make=_variant(SlotsForExpected)),
    "prefix-aware": Arm(spec="kairos", router=replace(_ROUTER, prefix_aware=True)),
}
"""By row name; the row `kairos` itself is in the policy table (alpha 1.3, beta 0.9, a heartbeat of 0.1 s, no loss)."""
