"""The router's picture of the cluster: what nodes last reported, and what it sent them since."""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from vllm_kairos.core import events
from vllm_kairos.core.inflight import InFlight, corrected
from vllm_kairos.core.node import LinkState, NodeState, Role
from vllm_kairos.core.shapes import Route

_TRANSFER_MEMORY = 0.75  # weight that earlier transfers keep when a new one is measured
_LONGEST_TRANSFER_S = 3600.0  # a longer one measures no link, and sums of such would overflow


@dataclass(slots=True)
class _Node:
    """One registered node: its last report and when it came."""

    role: Role
    report: NodeState
    boot_id: str | None = None
    dead_boot_id: str | None = None
    received_at_s: float = -inf
    state_age_s: float = 0.0
    accepting: bool = True
    refused_lease_id: str = ""
    base: NodeState | None = None  # the report with what the router knows of the node; None: to be worked out

    @property
    def lease_until_s(self) -> float:
        """When the reported lease ends; -inf: there is none, or none that the node stands by."""
        lease = self.report.lease
        return -inf if lease is None or lease.lease_id == self.refused_lease_id else lease.until_s


class ClusterView:
    """What a policy decides on: `apply(event)` in, `nodes(now_s)` out.

    A report is taken to show what was sent at least `settle_s` before its state was read; until then, or
    for as long as the node is stale, the view counts it itself. Freshness goes by the receipt time alone:
    a node is stale from `stale_after_s` after its last report, and until its first one. A stale node
    shows its last known sizes and the router's own load on it, and comes back with its next report. A lease
    shows until it ends, or the node refuses a request under it; less what was sent since the report.
    """

    def __init__(self, *, stale_after_s: float = 1.0, settle_s: float = 0.05) -> None:
        self._stale_after_s = stale_after_s
        self._settle_s = settle_s
        self._nodes: dict[str, _Node] = {}
        self._requests: dict[str, InFlight] = {}
        self._on_node: dict[str, dict[str, InFlight]] = {}
        self._transfers: dict[str, dict[str, tuple[float, float]]] = {}  # decode -> prefill -> bytes, seconds
        self._names: list[str] = []
        self._states: list[NodeState | None] = []
        self._snapshot: tuple[NodeState, ...] = ()
        self._dirty: set[str] = set()
        self._next_stale_s = inf
        self._handlers: Mapping[type[events.Event], Callable[[Any], None]] = {
            events.NodeAdded: self._node_added,
            events.NodeRemoved: self._node_removed,
            events.NodeReported: self._node_reported,
            events.AcceptingChanged: self._accepting_changed,
            events.Dispatched: self._dispatched,
            events.PrefillDone: self._prefill_done,
            events.FirstToken: self._first_token,
            events.Ended: self._ended,
            events.LeaseRefused: self._lease_refused,
            events.TransferObserved: self._transfer_observed,
        }

    @property
    def tracked_requests(self) -> int:
        """Requests dispatched and not ended."""
        return len(self._requests)

    def apply(self, event: events.Event) -> None:
        """Take in one event; one about a node or request that is not known changes nothing."""
        self._handlers[type(event)](event)

    def nodes(self, now_s: float) -> tuple[NodeState, ...]:
        """Return every registered node as believed at `now_s`, by id; only what changed is worked out anew."""
        if now_s >= self._next_stale_s:
            self._mark_stale(now_s)
        if self._dirty:
            for name in self._dirty:
                self._states[bisect_left(self._names, name)] = self._state(name, now_s)
            self._dirty.clear()
            self._snapshot = tuple(state for state in self._states if state is not None)
        return self._snapshot

    def _mark_stale(self, now_s: float) -> None:
        """Have worked out anew what has become stale, or whose lease has ended, and note when the next one will."""
        self._next_stale_s = inf
        for name, node in self._nodes.items():
            for ends_s in (node.received_at_s + self._stale_after_s, node.lease_until_s):
                if ends_s > now_s:
                    self._next_stale_s = min(self._next_stale_s, ends_s)
                elif ends_s > -inf:
                    self._dirty.add(name)

    def _state(self, name: str, now_s: float) -> NodeState:
        node = self._nodes[name]
        stale, leased = now_s >= node.received_at_s + self._stale_after_s, now_s < node.lease_until_s
        if node.base is None or node.base.stale is not stale or (node.base.lease is not None and not leased):
            node.base = node.report.seen_as(
                role=node.role,
                accepting=node.accepting,
                stale=stale,
                leased=leased,
                observed_at_s=node.received_at_s,
                links=self._measured_links(name),
            )
        shown_until_s = -inf if stale else node.received_at_s - node.state_age_s - self._settle_s
        return corrected(node.base, self._on_node[name].values(), shown_until_s)

    def _measured_links(self, name: str) -> tuple[LinkState, ...]:
        """The links into decode node `name` whose rate was measured."""
        transfers = self._transfers.get(name, {})
        return tuple(
            LinkState(prefill_node=prefill, bandwidth_bytes_per_s=size / time_s)
            for prefill, (size, time_s) in sorted(transfers.items())
        )

    def _measured_anew(self, name: str) -> None:
        self._nodes[name].base = None
        self._dirty.add(name)

    def _node_added(self, event: events.NodeAdded) -> None:
        known = self._nodes.get(event.node_id)
        if known is None:
            report = NodeState(node_id=event.node_id, role=event.role)
            self._nodes[event.node_id] = _Node(role=event.role, report=report)
            self._on_node[event.node_id] = {}
            at = bisect_left(self._names, event.node_id)
            self._names.insert(at, event.node_id)
            self._states.insert(at, None)
        else:
            known.role, known.base = event.role, None
        self._dirty.add(event.node_id)

    def _node_removed(self, event: events.NodeRemoved) -> None:
        if self._nodes.pop(event.node_id, None) is None:
            return
        self._forget(event.node_id, self._on_node.pop(event.node_id))
        at = bisect_left(self._names, event.node_id)
        del self._names[at], self._states[at]
        self._transfers.pop(event.node_id, None)
        for name, sources in self._transfers.items():
            if sources.pop(event.node_id, None):
                self._measured_anew(name)
        self._dirty.discard(event.node_id)
        self._snapshot = tuple(state for state in self._snapshot if state.node_id != event.node_id)

    def _node_reported(self, event: events.NodeReported) -> None:
        name = event.state.node_id
        node = self._nodes.get(name)
        if node is None or event.boot_id == node.dead_boot_id or event.received_at_s < node.received_at_s:
            return
        if node.boot_id not in (None, event.boot_id):
            node.dead_boot_id = node.boot_id
            self._drop_lost(name, event.received_at_s - event.state_age_s - self._settle_s)
        node.boot_id, node.report, node.received_at_s = event.boot_id, event.state, event.received_at_s
        node.state_age_s = event.state_age_s
        node.base = None
        self._next_stale_s = min(self._next_stale_s, event.received_at_s + self._stale_after_s)
        if event.state.lease is not None:
            self._next_stale_s = min(self._next_stale_s, event.state.lease.until_s)
        self._dirty.add(name)

    def _accepting_changed(self, event: events.AcceptingChanged) -> None:
        node = self._nodes.get(event.node_id)
        if node is not None and node.accepting is not event.accepting:
            node.accepting, node.base = event.accepting, None
            self._dirty.add(event.node_id)

    def _dispatched(self, event: events.Dispatched) -> None:
        self._end(event.request_id)  # a retry under the same id starts over
        request = InFlight(
            prefill_node=event.prefill_node if event.prefill_node in self._nodes else None,
            decode_node=event.decode_node if event.decode_node in self._nodes else None,
            prompt_tokens=event.prompt_tokens,
            dispatched_at_s=event.at_s,
            deflected=event.route is Route.LOCAL,
            need=event.need,
        )
        self._requests[event.request_id] = request
        for name in _legs(request):
            self._on_node[name][event.request_id] = request
            self._dirty.add(name)

    def _prefill_done(self, event: events.PrefillDone) -> None:
        request = self._requests.get(event.request_id)
        if request is not None and request.prefill_done_at_s == inf:
            request.prefill_done_at_s = event.at_s
            self._dirty.update(_legs(request))

    def _first_token(self, event: events.FirstToken) -> None:
        request = self._requests.get(event.request_id)
        if request is not None and request.first_token_at_s == inf:
            request.first_token_at_s = event.at_s
            request.prefill_done_at_s = min(request.prefill_done_at_s, event.at_s)
            self._dirty.update(_legs(request))

    def _ended(self, event: events.Ended) -> None:
        self._end(event.request_id)

    def _lease_refused(self, event: events.LeaseRefused) -> None:
        """Send nothing more under that lease: the node has its reasons, and says what is true in its next report."""
        node = self._nodes.get(event.decode_node)
        if node is not None and node.refused_lease_id != event.lease_id:
            node.refused_lease_id, node.base = event.lease_id, None
            self._dirty.add(event.decode_node)

    def _transfer_observed(self, event: events.TransferObserved) -> None:
        both = event.prefill_node in self._nodes and event.decode_node in self._nodes
        if not both or event.transferred_bytes <= 0 or not 0 < event.transfer_s <= _LONGEST_TRANSFER_S:
            return
        sources = self._transfers.setdefault(event.decode_node, {})
        size, time_s = sources.get(event.prefill_node, (0.0, 0.0))
        sources[event.prefill_node] = (
            size * _TRANSFER_MEMORY + event.transferred_bytes,
            time_s * _TRANSFER_MEMORY + event.transfer_s,
        )
        self._measured_anew(event.decode_node)

    def _end(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        for name in _legs(request) if request is not None else ():
            del self._on_node[name][request_id]
            self._dirty.add(name)

    def _drop_lost(self, name: str, before_s: float) -> None:
        """Drop from a restarted node what its old process had: legs that had begun there by `before_s`."""
        lost = {key: request for key, request in self._on_node[name].items() if _begun_at_s(request, name) <= before_s}
        for key in lost:
            del self._on_node[name][key]
        self._forget(name, lost)

    def _forget(self, name: str, requests: dict[str, InFlight]) -> None:
        for request in requests.values():
            self._dirty.update(_legs(request))
            if request.prefill_node == name:
                request.prefill_node = None
            if request.decode_node == name:
                request.decode_node = None


def _legs(request: InFlight) -> set[str]:
    return {name for name in (request.prefill_node, request.decode_node) if name is not None}


def _begun_at_s(request: InFlight, name: str) -> float:
    """When the leg on node `name` began; inf: it is still to come."""
    if request.decode_node == name and not request.deflected and request.prefill_node != name:
        return request.prefill_done_at_s
    return request.dispatched_at_s
