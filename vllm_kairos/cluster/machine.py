"""What this machine offers: free ports, CPUs and memory."""

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from vllm_kairos.errors import ClusterError, ConfigError

HOST = "127.0.0.1"
SERVER_MEMORY_GIB = 2.2
"""A small model's CPU server without its KV cache: three processes, mostly libraries."""

_CPU_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


def choose_ports(count: int, base_port: int | None) -> tuple[int, ...]:
    """Return `count` ports that are free at this moment: counted up from `base_port`, or any."""
    wanted = [0] * count if base_port is None else [base_port + offset for offset in range(count)]
    with ExitStack() as held:
        return tuple(held.enter_context(_bound(port)) for port in wanted)


@contextmanager
def _bound(port: int) -> Iterator[int]:
    with ExitStack() as stack:
        try:
            listener = stack.enter_context(socket.socket())
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ClusterError(f"port {port} must be free, got: {error}") from error
        yield listener.getsockname()[1]


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


def check_memory(servers: int, kv_cache_gib: int) -> None:
    """Refuse a cluster that this machine's free memory cannot hold."""
    needed_gib = servers * (SERVER_MEMORY_GIB + kv_cache_gib)
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
