"""The workers this router knows, static and added at run time; keeps the cluster view told."""

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

from kairos_router import flag_values
from vllm_kairos.core.events import AcceptingChanged, Event, NodeAdded, NodeRemoved
from vllm_kairos.core.node import Role
from vllm_kairos.errors import ConfigError, RequestError


class Cause(StrEnum):
    """Why a worker takes no new requests."""

    STARTING = "starting"  # not seen healthy yet
    UNHEALTHY = "unhealthy"  # failed its health checks
    BREAKER = "breaker"  # its circuit breaker is open
    DRAINING = "draining"
    WIRING = "wiring"  # wrong role, model or block size


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One vLLM server, which is one node or one node per data-parallel rank."""

    name: str
    role: Role
    url: str  # http://host:port, no trailing slash
    bootstrap_port: int | None = None
    dp_size: int = 1

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError(f"worker name must be non-empty and without '/', got {self.name!r}")
        if self.dp_size < 1:
            raise ConfigError(f"worker {self.name!r}: dp_size must be >= 1, got {self.dp_size}")

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The ids under which the view knows this worker's engines."""
        if self.dp_size == 1:
            return (self.name,)
        return tuple(f"{self.name}/dp{rank}" for rank in range(self.dp_size))


class ViewSink(Protocol):
    """The part of ClusterView that the registry needs."""

    def apply(self, event: Event) -> None:
        """Take one event."""


@dataclass(slots=True)
class _Entry:
    worker: Worker
    causes: set[Cause] = field(default_factory=set)


class WorkerRegistry:
    """Worker name -> worker, and the causes that keep it from new requests."""

    def __init__(self, view: ViewSink) -> None:
        self._view = view
        self._entries: dict[str, _Entry] = {}
        self._by_url: dict[str, str] = {}
        self._by_node: dict[str, tuple[str, int | None]] = {}

    def add(self, worker: Worker, *, causes: frozenset[Cause] = frozenset()) -> None:
        """Register a worker; raises ConfigError where its name or URL is taken by another."""
        if worker.name in self._entries:
            raise ConfigError(f"worker name must be unique, got {worker.name!r} twice")
        if worker.url in self._by_url:
            raise ConfigError(f"worker URL must be unique, got {worker.url!r} twice")
        self._entries[worker.name] = _Entry(worker, set(causes))
        self._by_url[worker.url] = worker.name
        ranked = worker.dp_size > 1
        for rank, node_id in enumerate(worker.node_ids):
            self._by_node[node_id] = (worker.name, rank if ranked else None)
            self._view.apply(NodeAdded(node_id=node_id, role=worker.role))
        if causes:
            self._tell(worker.name)

    def remove(self, name: str) -> Worker:
        """Forget a worker at once; requests that run on it go on. Raises RequestError for an unknown name."""
        worker = self.get(name)
        del self._entries[name], self._by_url[worker.url]
        for node_id in worker.node_ids:
            del self._by_node[node_id]
            self._view.apply(NodeRemoved(node_id=node_id))
        return worker

    def replace(self, name: str, worker: Worker) -> None:
        """Put `worker` in the place of `name`, its causes kept; raises ConfigError like `add`."""
        taken = self._entries.get(worker.name)
        if worker.name != name and taken is not None:
            raise ConfigError(f"worker name must be unique, got {worker.name!r} for {taken.worker.url} and {worker.url}")
        causes = self.causes(name)
        self.remove(name)
        self.add(worker, causes=causes)

    def drain(self, name: str) -> None:
        """Send no new request to a worker; what runs there goes on."""
        self.block(name, Cause.DRAINING)

    def block(self, name: str, cause: Cause) -> None:
        """Keep new requests from a worker until every cause is lifted."""
        self._set(name, cause, present=True)

    def unblock(self, name: str, cause: Cause) -> None:
        """Lift one cause."""
        self._set(name, cause, present=False)

    def causes(self, name: str) -> frozenset[Cause]:
        """Why the worker takes no new requests; empty when it takes them."""
        return frozenset(self._entry(name).causes)

    def accepting(self, name: str) -> bool:
        return not self._entry(name).causes

    def get(self, name: str) -> Worker:
        """Return the worker; raises RequestError for an unknown name."""
        return self._entry(name).worker

    def find(self, name: str) -> Worker | None:
        entry = self._entries.get(name)
        return None if entry is None else entry.worker

    def by_url(self, url: str) -> Worker | None:
        """Return the worker at `url`, or at `host:port` as x-prefiller-host-port spells it; None: not registered."""
        try:
            normalized = flag_values.worker_url(url if "://" in url else f"http://{url}")
        except ValueError:
            return None
        name = self._by_url.get(normalized)
        return None if name is None else self._entries[name].worker

    def all(self) -> tuple[Worker, ...]:
        return tuple(entry.worker for entry in self._entries.values())

    def with_role(self, role: Role) -> Iterator[Worker]:
        """Workers registered for `role`."""
        return (entry.worker for entry in self._entries.values() if entry.worker.role is role)

    def resolve(self, node_id: str) -> tuple[Worker, int | None]:
        """Return a node's worker and its data-parallel rank, None where the worker has one rank only.

        Raises RequestError for an unknown node.
        """
        if node_id not in self._by_node:
            raise RequestError(f"node must be registered, got {node_id!r}")
        name, rank = self._by_node[node_id]
        return self._entries[name].worker, rank

    def _entry(self, name: str) -> _Entry:
        if name not in self._entries:
            raise RequestError(f"worker must be registered, got {name!r}")
        return self._entries[name]

    def _set(self, name: str, cause: Cause, *, present: bool) -> None:
        causes = self._entry(name).causes
        before = bool(causes)
        if present:
            causes.add(cause)
        else:
            causes.discard(cause)
        if bool(causes) != before:
            self._tell(name)

    def _tell(self, name: str) -> None:
        entry = self._entries[name]
        for node_id in entry.worker.node_ids:
            self._view.apply(AcceptingChanged(node_id=node_id, accepting=not entry.causes))


def checked_runtime_url(raw: str) -> str:
    """Normalize a URL that a caller asks to add at run time; raises RequestError.

    Refused: anything but a bare http(s) origin, and literal addresses that no server of ours has but
    cloud metadata services do (link-local, multicast, unspecified, reserved).
    """
    try:
        url = flag_values.worker_url(raw)
    except ValueError as error:
        raise RequestError(f"url {error}, got {raw!r}") from error
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return url  # a name; probes of it follow no redirect
    if _is_foreign(address):
        raise RequestError(f"url must not be a link-local, multicast, unspecified or reserved address, got {raw!r}")
    return url


_METADATA_V6 = ipaddress.ip_address("fd00:ec2::254")


def _is_foreign(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    plain = getattr(address, "ipv4_mapped", None) or address
    special = plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain.is_reserved
    return special or plain == _METADATA_V6


def default_name(url: str) -> str:
    """`host:port` of a worker that does not say its own name."""
    return url.partition("://")[2]
