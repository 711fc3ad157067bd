"""What this machine offers: free ports, CPUs and memory."""

import os
import random
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from vllm_kairos.errors import ClusterError, ConfigError

HOST = "127.0.0.1"

_OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_PORT_TRIES = 100
_CPU_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def choose_ports(count: int, base_port: int | None) -> tuple[int, ...]:
    """Return `count` ports that are free at this moment: counted up from `base_port`, or any.

    Any means none that the system hands out for outgoing connections: servers open many of those in
    the half minute before the last port of a cluster is bound.
    """
    with ExitStack() as held:
        listeners = [
            held.enter_context(_any_listener() if base_port is None else _listener(base_port + offset))
            for offset in range(count)
        ]
        return tuple(listener.getsockname()[1] for listener in listeners)


def _any_listener() -> socket.socket:
    """Bind a port below those of outgoing connections, or whatever the system gives where there are too few."""
    below = _first_outgoing_port()
    for _ in range(_PORT_TRIES if below - _LOWEST_PORT >= _PORT_TRIES else 0):
        with suppress(ClusterError):
            return _listener(random.randrange(_LOWEST_PORT, below))
    return _listener(0)


def _first_outgoing_port() -> int:
    try:
        return int(_OUTGOING_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _LOWEST_PORT


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()  # two sockets that only bind may share a port
    except (OSError, OverflowError) as error:
        listener.close()
        raise ClusterError(f"port {port} must be free, got: {error}") from error
    return listener


def parse_cpus(text: str) -> frozenset[int]:
    """Read a CPU list such as `0-3,6`; ConfigError unless this process may use every one of them."""
    usable = os.sched_getaffinity(0)
    cpus: set[int] = set()
    for part in text.split(","):
        found = _CPU_RANGE.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"pins must look like 0-3,6, got {text!r}")
        first, last = found.groups()
        cpus |= set(range(int(first), int(last or first) + 1))
    if not cpus or not cpus <= usable:
        raise ConfigError(f"pins must be among the usable CPUs {sorted(usable)}, got {text!r}")
    return frozenset(cpus)


def spread_cpus(servers: int) -> tuple[frozenset[int], ...]:
    """Give every server an equal share of the usable CPUs; with fewer CPUs than servers they share one by one."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < servers:
        return tuple(frozenset({usable[index % len(usable)]}) for index in range(servers))
    each = len(usable) // servers
    return tuple(frozenset(usable[index * each : (index + 1) * each]) for index in range(servers))


def check_memory(servers: int, each_gib: float) -> None:
    """Refuse a cluster that this machine's free memory cannot hold."""
    needed_gib = servers * each_gib
    free_gib = _available_gib()
    if free_gib is not None and free_gib < needed_gib:
        raise ClusterError(f"memory must be at least {needed_gib:.1f} GiB for {servers} servers, got {free_gib:.1f} GiB free")


def _available_gib() -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) / 2**20 if found else None
