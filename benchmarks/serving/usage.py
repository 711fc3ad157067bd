"""What a cell takes of the machine."""

import os
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.serving.servers import group_cpu_s, group_rss_mb, machine_cpu_s


class Usage:
    """CPU seconds from here on: the servers', all fronts' together, this client's, and whoever else's. Takes process groups."""

    def __init__(self, servers: Sequence[int], fronts: Sequence[int]) -> None:
        self._servers, self._fronts = servers, fronts
        self._load_before = os.getloadavg()[0]
        self._before = self._now()

    def spent(self) -> dict[str, Any]:
        """Since it was made."""
        now = self._now()
        used = {name: value - self._before[name] for name, value in now.items()}
        ours_s = used["servers_cpu_s"] + used["front_cpu_s"] + used["client_cpu_s"]
        busy_s, had_s = used.pop("busy_s"), used.pop("had_s")
        return used | {
            "front_rss_mb": group_rss_mb(self._fronts),
            "others_cpu_s": max(0.0, busy_s - ours_s),
            "busy_share": busy_s / had_s if had_s else 0.0,
            "load_before": self._load_before,
            "load_after": os.getloadavg()[0],
        }

    def _now(self) -> dict[str, float]:
        busy_s, had_s = machine_cpu_s()
        return {
            "servers_cpu_s": group_cpu_s(self._servers),
            "front_cpu_s": group_cpu_s(self._fronts),
            "client_cpu_s": time.process_time(),
            "busy_s": busy_s,
            "had_s": had_s,
        }
