"""The latency profile of this machine, measured once and kept in the cache."""

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_kairos import __version__
from vllm_kairos.cluster.model import cache_dir
from vllm_kairos.errors import ClusterError


def cached_profile(model: str, dtype: str) -> Path:
    """Return the profile for this model on this machine; measures it, in a process of its own, when there is none.

    Raises ClusterError when measuring fails; the profiler's own message stands above it.
    """
    path = cache_dir() / "profiles" / f"{_key([Path(model).name, dtype])}.json"
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    last_cpu = max(os.sched_getaffinity(0))
    engine = ["--dtype", dtype, "--max-model-len", "4096", "--block-size", "32", "--max-num-seqs", "16"]
    engine += ["--cpus", str(last_cpu), "--", "--enforce-eager"]
    command = [sys.executable, "-m", "vllm_kairos", "profile", "--quick", "--model", model, "--out", str(path), *engine]
    status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    if status or not path.is_file():
        raise ClusterError(f"profile: `kairos profile --quick` must succeed, it ended with status {status}")
    return path


def _key(parts: Sequence[str]) -> str:
    cpu = _cpu_name()
    return hashlib.sha256("\0".join([cpu, platform.node(), __version__, *parts]).encode()).hexdigest()[:12]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
