"""What `kairos profile` was asked for, checked before anything heavy starts."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_kairos.errors import ConfigError

QUICK_BUDGET_S = 150.0
FULL_BUDGET_S = 900.0
DEFAULT_CHUNK_CANDIDATES = (2048, 1024, 512, 256, 128, 64)

_CPU_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """One profiling run. The engine options are those of the servers that the profile is for."""

    model: str
    quick: bool = False
    time_budget_s: float | None = None  # of the whole run, engine start included; None: by `quick`
    dtype: str = "auto"
    max_model_len: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    chunk_candidates: tuple[int, ...] = DEFAULT_CHUNK_CANDIDATES
    cpus: str | None = None  # pin the engine, as in "0" or "0-3,6"
    kv_cache_gib: int | None = None  # CPU only
    engine_args: tuple[str, ...] = ()  # more vLLM flags, as served

    def __post_init__(self) -> None:
        _check_model(self.model)
        _check_positive("--time-budget-s", self.time_budget_s)
        for name in ("max_model_len", "block_size", "max_num_seqs", "kv_cache_gib"):
            _check_positive("--" + name.replace("_", "-"), getattr(self, name))
        if not self.chunk_candidates or min(self.chunk_candidates) < 1:
            raise ConfigError(f"--chunk-candidates must be integers >= 1, got {list(self.chunk_candidates)}")
        self.pinned_cpus()

    @property
    def budget_s(self) -> float:
        """Seconds the whole run may take."""
        if self.time_budget_s is not None:
            return self.time_budget_s
        return QUICK_BUDGET_S if self.quick else FULL_BUDGET_S

    def engine_argv(self) -> tuple[str, ...]:
        """The vLLM flags of the profiled engine."""
        named = {
            "--model": self.model,
            "--dtype": self.dtype,
            "--max-model-len": self.max_model_len,
            "--block-size": self.block_size,
            "--max-num-seqs": self.max_num_seqs,
        }
        given = [(flag, str(value)) for flag, value in named.items() if value is not None]
        return (*(word for pair in given for word in pair), *self.engine_args)

    def pinned_cpus(self) -> frozenset[int]:
        """CPUs to pin the engine to; empty: not pinned."""
        return _parse_cpus(self.cpus) if self.cpus is not None else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """One profile from recorded steps."""

    files: tuple[Path, ...]
    like: str | None = (
        None  # a profile, file or shipped name, for what the files do not say; None: that which predicted the steps
    )
    model: str | None = None  # None: as recorded
    chunk_candidates: tuple[int, ...] | None = None  # None: those of `like`


def engine_environment(options: ProfileOptions, present: Mapping[str, str]) -> dict[str, str]:
    """Variables to set before vLLM is imported; what the caller has set stays, but for the in-process switch."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1"}
    if Path(options.model).is_dir():
        wanted["HF_HUB_OFFLINE"] = "1"
    if options.cpus is not None:
        wanted |= {"OMP_NUM_THREADS": str(len(options.pinned_cpus())), "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    missing = {name: value for name, value in wanted.items() if name not in present}
    if options.kv_cache_gib is not None:
        missing["VLLM_CPU_KVCACHE_SPACE"] = str(options.kv_cache_gib)
    return missing | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def check_output(path: Path) -> None:
    """Refuse an --out that could not be written, before minutes of measuring."""
    if path.is_dir():
        raise ConfigError(f"--out must be a file, got the folder {str(path)!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"--out must lie in an existing folder, got {str(path)!r}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--out must be writable, got {str(path)!r}")


def _check_model(model: str) -> None:
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"--model must be a folder with a config.json, got {model!r}")
    elif folder.is_absolute() or not _HUB_NAME.fullmatch(model):
        raise ConfigError(f"--model must be an existing folder or a hub name, got {model!r}")


def _check_positive(flag: str, value: float | None) -> None:
    if value is not None and not 0 < value < float("inf"):
        raise ConfigError(f"{flag} must be a finite number > 0, got {value}")


def _parse_cpus(text: str) -> frozenset[int]:
    usable = os.sched_getaffinity(0)
    cpus: set[int] = set()
    for part in text.split(","):
        found = _CPU_RANGE.fullmatch(part.strip())
        if found is None:
            raise ConfigError(f"--cpus must look like 0-3,6, got {text!r}")
        first, last = found.groups()
        cpus |= set(range(int(first), int(last or first) + 1))
    if not cpus or not cpus <= usable:
        raise ConfigError(f"--cpus must be among the usable CPUs {sorted(usable)}, got {text!r}")
    return frozenset(cpus)
