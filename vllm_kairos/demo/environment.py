"""Where a result was measured."""

import os
import platform
from pathlib import Path
from typing import Any

from vllm_kairos import __version__
from vllm_kairos.fitting.artifact import load_profile


def describe_environment(profile_path: Path) -> dict[str, Any]:
    """Model, hardware and versions; names no host and no path."""
    profile = load_profile(profile_path)
    return {
        "model": Path(profile.model).name,
        "hardware": profile.hardware,
        "cpus": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "vllm_version": profile.vllm_version,
        "kairos_version": __version__,
        "profile_mape": {name: accuracy.mape for name, accuracy in profile.accuracy.items()},
    }
