"""KV transfers between engines: flows that share the links they cross."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from vllm_kairos.errors import SimulationError
from vllm_kairos.sim.kernel import Kernel


class Path(NamedTuple):
    """How bytes get from one engine to another."""

    latency_s: float
    most_bytes_per_s: float  # of one flow, however idle the links are
    links: tuple[str, ...]  # shared with other flows


class Topology(Protocol):
    """Which links a transfer crosses, and what each carries."""

    def path(self, source: str, target: str) -> Path:
        """The path from engine `source` to engine `target`."""

    def capacity_bytes_per_s(self, link: str) -> float:
        """What `link` carries for all its flows together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoTierTopology:
    """Engines with one NIC each, in racks; between racks the path is longer and the rack's uplink is shared.

    An engine that `racks` does not name stands in rack "". Raises SimulationError naming field, rule and value.
    """

    nic_bytes_per_s: float = 25e9
    flow_bytes_per_s: float = inf  # what one transfer reaches by itself
    latency_s: float = 0.0005
    racks: Mapping[str, str] = field(default_factory=dict)
    uplink_bytes_per_s: float = 100e9
    cross_latency_s: float = 0.001

    def __post_init__(self) -> None:
        for name in ("nic_bytes_per_s", "flow_bytes_per_s", "uplink_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise SimulationError(f"network: {name} must be > 0, got {getattr(self, name)}")
        for name in ("latency_s", "cross_latency_s"):
            if not 0 <= getattr(self, name) < inf:
                raise SimulationError(f"network: {name} must be a finite number >= 0, got {getattr(self, name)}")

    def path(self, source: str, target: str) -> Path:
        """Out of one NIC, into the other, and over both racks' uplinks where those differ."""
        nics = f"out:{source}", f"in:{target}"
        here, there = self.racks.get(source, ""), self.racks.get(target, "")
        if here == there:
            return Path(self.latency_s, self.flow_bytes_per_s, nics)
        return Path(self.cross_latency_s, self.flow_bytes_per_s, (*nics, f"up:{here}", f"down:{there}"))

    def capacity_bytes_per_s(self, link: str) -> float:
        """A NIC's rate or an uplink's."""
        return self.uplink_bytes_per_s if link.startswith(("up:", "down:")) else self.nic_bytes_per_s


@dataclass(slots=True, eq=False)
class _Flow:
    path: Path
    left_bytes: float
    done: Callable[[], None]
    order: int
    rate_bytes_per_s: float = 0.0
    updated_s: float = 0.0
    epoch: int = 0


class Network:
    """Every flow gets an equal share of each of its links, and goes at the least of its shares.

    A flow's share changes as others begin and end; latency passes before its first byte. Equal shares
    leave a link idle in part where a flow on it is slower elsewhere, as independent NICs do.
    """

    def __init__(self, topology: Topology, kernel: Kernel) -> None:
        self._topology, self._kernel = topology, kernel
        self._on_link: dict[str, dict[_Flow, None]] = {}
        self._order = 0
        self.moved_bytes: Counter[str] = Counter()  # by "source>target"
        self.transfers = 0

    @property
    def active_flows(self) -> int:
        return len({flow for flows in self._on_link.values() for flow in flows})

    def start(self, source: str, target: str, size_bytes: float, done: Callable[[], None]) -> None:
        """Move `size_bytes`; `done` is called when the last byte is there, never before this returns."""
        path = self._topology.path(source, target)
        self._order += 1
        self.transfers += 1
        self.moved_bytes[f"{source}>{target}"] += int(size_bytes)
        flow = _Flow(path, float(size_bytes), done, self._order)
        self._kernel.after(path.latency_s, lambda: self._enter(flow))

    def _enter(self, flow: _Flow) -> None:
        flow.updated_s = self._kernel.now_s
        for link in flow.path.links:
            self._on_link.setdefault(link, {})[flow] = None
        self._share_anew(flow.path.links)

    def _share_anew(self, links: Iterable[str]) -> None:
        """Give every flow on `links` the rate it has from now on."""
        flows = {flow for link in links for flow in self._on_link.get(link, ())}
        for flow in sorted(flows, key=lambda flow: flow.order):
            now_s = self._kernel.now_s
            flow.left_bytes = max(0.0, flow.left_bytes - flow.rate_bytes_per_s * (now_s - flow.updated_s))
            flow.updated_s = now_s
            rate = self._rate(flow)
            if rate == flow.rate_bytes_per_s:
                continue  # its end is scheduled already
            flow.rate_bytes_per_s = rate
            flow.epoch += 1
            self._kernel.after(flow.left_bytes / rate, lambda flow=flow, epoch=flow.epoch: self._leave(flow, epoch))  # type: ignore[misc]

    def _rate(self, flow: _Flow) -> float:
        shares = [self._topology.capacity_bytes_per_s(link) / len(self._on_link[link]) for link in flow.path.links]
        return min(flow.path.most_bytes_per_s, *shares)

    def _leave(self, flow: _Flow, epoch: int) -> None:
        if epoch != flow.epoch:
            return
        for link in flow.path.links:
            del self._on_link[link][flow]
        self._share_anew(flow.path.links)
        flow.done()
