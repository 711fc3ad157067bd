"""Where a figure was measured, for the JSON beside it."""

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Processor, cores and Python; never a host name or a path."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "machine": names[0] if names else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
