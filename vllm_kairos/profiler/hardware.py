"""Name what was measured: the machine and the model, so that a profile is not used on another."""

import hashlib
import os
import platform
from collections.abc import Iterable
from pathlib import Path


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's model name, or its architecture where the kernel gives none."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def usable_cpus() -> int:
    """CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def model_fingerprint(model: str) -> str:
    """Digest of a model folder's config and weight file sizes; empty for a model that is not a local folder."""
    folder = Path(model)
    config = folder / "config.json"
    if not config.is_file():
        return ""
    digest = hashlib.sha256(config.read_bytes())
    for name, size in _weights(folder.iterdir()):
        digest.update(f"{name}:{size}".encode())
    return digest.hexdigest()[:16]


def _weights(files: Iterable[Path]) -> list[tuple[str, int]]:
    return sorted((file.name, file.stat().st_size) for file in files if file.suffix in (".safetensors", ".bin", ".gguf"))
