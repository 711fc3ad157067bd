"""What every policy does alike: refusals, forced and pinned requests, a missing prefill role."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

from vllm_kairos.core.decision import Assign, Decision, Reason, Reject, RejectReason
from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.node import NodeState, Role
from vllm_kairos.core.policies.locals import Local, LocalPicker, SafeLocals, StaticLocals, anyhow
from vllm_kairos.core.policies.pairs import LeastLoadedPairs, Pair, PairPicker, SoonestPairs
from vllm_kairos.core.policies.pools import COUNTED, Pooling, Pools, can_ever_hold
from vllm_kairos.core.settings import DecisionSettings, PrefillUnavailable
from vllm_kairos.core.shapes import RequestShape, Route


@dataclass(frozen=True, slots=True)
class Choice:
    """What a rule made of a request that could go either way."""

    reason: Reason
    local: Local | None = None  # the best decode node, also when it was not good enough
    deflect: bool = False


class Rule(Protocol):
    """The one question that policies answer differently."""

    def __call__(self, request: RequestShape, pools: Pools, pair: Pair) -> Choice:
        """Choose between `pair` and a decode node of `pools`."""


class LocalRule(Protocol):
    """The question that is left where there is no prefill path to compare with."""

    def __call__(self, request: RequestShape, pools: Pools) -> Choice:
        """Choose a decode node of `pools`, or none."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Answers everything about a request that does not depend on the policy, and asks the rule for the rest."""

    settings: DecisionSettings
    prefill_model: StepLatencyModel | None = None
    decode_model: StepLatencyModel | None = None
    pooling: Pooling = COUNTED

    @property
    def pairs(self) -> PairPicker:
        """By predicted TTFT where there are models for both roles, else by load."""
        if self.prefill_model is None or self.decode_model is None:
            return LeastLoadedPairs()
        return SoonestPairs(self.prefill_model, self.decode_model, self.settings)

    @property
    def bounded_locals(self) -> LocalPicker:
        """Only what keeps decodes within TBT where a model can tell, else small fixed chunks."""
        if self.decode_model is None:
            return StaticLocals(self.settings)
        return SafeLocals(self.decode_model, self.settings)

    def decide(
        self,
        request: RequestShape,
        nodes: Sequence[NodeState],
        now_s: float,
        rule: Rule,
        *,
        without_pair: LocalRule | None = None,
    ) -> Decision:
        """Assign `request`, asking `rule` where both paths are open.

        Without a prefill path the operator's setting decides, unless the policy needs none and brings `without_pair`.
        """
        pools = self.pooling.split(request, nodes, self.settings)
        if not pools.decodes:
            return self._no_decode(request, nodes)
        if request.forced_route is Route.LOCAL:
            return self._forced_local(request, pools, now_s)
        if request.pinned_prefill_node is not None:
            return self._pinned(request, request.pinned_prefill_node, nodes, pools, now_s)
        pair = self.pairs.pick(request, pools.prefills, pools.receivers)
        if request.forced_route is Route.REMOTE:
            if pair is None:
                return self._no_prefill("the request is bound to the prefill path")
            return _kept(pair, Choice(Reason.FORCED), now_s, request.forced_reason)
        choice = self._choice(request, pools, pair, rule, without_pair)
        if choice is not None and choice.deflect and choice.local is not None:
            return _deflected(choice.local, choice.reason, now_s, pair=pair)
        if pair is None or choice is None:
            return self._without_prefill(request, pools, now_s)
        return _kept(pair, choice, now_s)

    def _choice(
        self, request: RequestShape, pools: Pools, pair: Pair | None, rule: Rule, without_pair: LocalRule | None
    ) -> Choice | None:
        if pair is not None:
            return rule(request, pools, pair)
        return None if without_pair is None else without_pair(request, pools)

    def _no_decode(self, request: RequestShape, nodes: Sequence[NodeState]) -> Reject:
        decodes = [node for node in nodes if node.role is not Role.PREFILL]
        if decodes and not any(can_ever_hold(node, request) for node in decodes):
            largest = max(node.total_kv_blocks * node.block_size_tokens for node in decodes)
            detail = f"prompt_tokens must be <= {largest}, the largest decode node's KV cache, got {request.prompt_tokens}"
            return Reject(reason=RejectReason.KV_TOO_LARGE, detail=detail)
        detail = f"{len(decodes)} decode nodes, none accepts work"
        return Reject(reason=RejectReason.NO_DECODE_NODE, detail=detail, retry_after_s=self.settings.retry_after_s)

    def _no_prefill(self, detail: str) -> Reject:
        retry_s = self.settings.retry_after_s
        return Reject(reason=RejectReason.NO_PREFILL_NODE, detail=detail, retry_after_s=retry_s)

    def _forced_local(self, request: RequestShape, pools: Pools, now_s: float) -> Decision:
        local = self.bounded_locals.best(request, pools.deflectable)
        if local is None:
            local = anyhow(request, pools.decodes, self.settings, self.decode_model)
        return _deflected(local, request.forced_reason or Reason.FORCED, now_s)

    def _pinned(self, request: RequestShape, name: str, nodes: Iterable[NodeState], pools: Pools, now_s: float) -> Decision:
        pinned = [node for node in nodes if node.node_id == name and node.role is not Role.DECODE]
        if not pinned:
            return Reject(reason=RejectReason.UNKNOWN_NODE, detail=f"no prefill node is called {name!r}")
        accepting = [node for node in pinned if node.accepting]
        pair = self.pairs.pick(request, accepting, pools.receivers)
        if pair is None:
            return self._no_prefill(f"pinned node {name!r} accepts no work")
        return _kept(pair, Choice(Reason.PINNED), now_s, request.forced_reason)

    def _without_prefill(self, request: RequestShape, pools: Pools, now_s: float) -> Decision:
        mode = self.settings.prefill_unavailable
        if mode is PrefillUnavailable.FAIL:
            return self._no_prefill("no prefill node accepts work")
        local = self.bounded_locals.best(request, pools.deflectable)
        if local is None and mode is PrefillUnavailable.DEFLECT:
            local = anyhow(request, pools.decodes, self.settings, self.decode_model)
        if local is not None:
            return _deflected(local, Reason.PREFILL_UNAVAILABLE, now_s)
        why = Reason.TBT_UNSAFE if pools.deflectable else pools.blocked
        detail = f"no prefill node accepts work and no decode node may take the prompt: {why}"
        return Reject(reason=RejectReason.NO_SAFE_NODE, detail=detail, retry_after_s=self.settings.retry_after_s)


def _kept(pair: Pair, choice: Choice, now_s: float, reason: str = "") -> Assign:
    local = choice.local
    used = [pair.prefill, pair.decode] + ([local.node] if local else [])
    return Assign(
        route=Route.REMOTE,
        decode_node=pair.decode.node_id,
        prefill_node=pair.prefill.node_id,
        reason=reason or choice.reason,
        remote_ttft_s=pair.ttft_s,
        local_ttft_s=local.ttft_s if local else None,
        state_age_s=_oldest_s(used, now_s),
        in_fitted_range=pair.in_range and (local is None or local.in_range),
    )


def _deflected(local: Local, reason: Reason | str, now_s: float, pair: Pair | None = None) -> Assign:
    used = [local.node] + ([pair.prefill, pair.decode] if pair else [])
    return Assign(
        route=Route.LOCAL,
        decode_node=local.node.node_id,
        prefill_node=None,
        reason=reason,
        schedule=local.schedule,
        remote_ttft_s=pair.ttft_s if pair else None,
        local_ttft_s=local.ttft_s,
        state_age_s=_oldest_s(used, now_s),
        in_fitted_range=local.in_range and (pair is None or pair.in_range),
    )


def _oldest_s(nodes: Sequence[NodeState], now_s: float) -> float | None:
    """Age of the oldest of `nodes`, None if one of them never reported."""
    age_s = now_s - min(node.observed_at_s for node in nodes)
    return max(0.0, age_s) if isfinite(age_s) else None
