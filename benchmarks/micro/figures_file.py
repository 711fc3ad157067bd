"""Where the figures of an engine's benchmark go: printed, and into the file that KAIROS_BENCH_OUT names."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.environment import describe_machine


def show(benchmark: str, running_requests: int, figures: Mapping[str, Any]) -> None:
    """Print the figures; with KAIROS_BENCH_OUT write them too, with what they were measured on."""
    print(json.dumps(figures, indent=2))  # noqa: T201
    if out := os.environ.get("KAIROS_BENCH_OUT"):
        import vllm

        environment = {**describe_machine(), "vllm": vllm.__version__}
        head = {"benchmark": benchmark, "running": running_requests, "environment": environment}
        Path(out).write_text(json.dumps({**head, **figures}, indent=2) + "\n")
