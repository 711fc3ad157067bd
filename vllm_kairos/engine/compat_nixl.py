"""What we rely on in NIXL and in how vLLM sets it up on CPUs."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vllm.platforms import current_platform


@contextmanager
def own_cpus_only() -> Iterator[None]:
    """Inside, NIXL's worker finds only the CPUs that this process was given.

    Seam: on a CPU platform the worker moves its thread, which also runs the model, to the last CPU of
    each NUMA node that `current_platform.discover_numa_topology()` lists (nixl/base_worker.py,
    0.30-0.33), whether or not the process may run there: two servers pinned to different CPUs would
    both compute on that one.
    """
    if not current_platform.is_cpu():
        yield
        return
    allowed = os.sched_getaffinity(0)
    discover = current_platform.discover_numa_topology
    current_platform.discover_numa_topology = lambda: _within(discover(), allowed)
    try:
        yield
    finally:
        del current_platform.discover_numa_topology  # the class's own shows again


def _within(nodes: list[list[int]], allowed: set[int]) -> list[list[int]]:
    return [own for node in nodes if (own := [cpu for cpu in node if cpu in allowed])]


class _DelayedBindings:
    """NIXL's bindings, with agents whose progress thread rests `delay_us` between polls."""

    def __init__(self, bindings: Any, delay_us: int) -> None:
        self._bindings = bindings
        self._delay_us = delay_us

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bindings, name)

    def nixlAgent(self, name: str, config: Any) -> Any:
        config.pthrDelay = self._delay_us
        return self._bindings.nixlAgent(name, config)


def delay_nixl_progress(delay_us: int) -> bool:
    """Let NIXL's progress thread sleep between polls; False when NIXL is not installed.

    Seam: nixl._api (1.5) builds every agent through its module global `nixlBind` and sets
    `pthrDelay = 0`, which makes the thread spin and cost a core even when idle.
    """
    try:
        api: Any = importlib.import_module("nixl._api")
    except ImportError:
        return False
    bindings = api.nixlBind._bindings if isinstance(api.nixlBind, _DelayedBindings) else api.nixlBind
    api.nixlBind = _DelayedBindings(bindings, delay_us)
    return True
