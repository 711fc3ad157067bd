"""What an emulated server needs that one with a device does not: flags, settings, connector, environment."""

import json
from typing import Any

from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.emulation.settings import parse_emulation
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import Profile, load_profile
from vllm_kairos.profiles import resolve_profile

EMULATED_MEMORY_GIB = 0.6  # two processes beside the libraries that all servers share
FORK_SERVER_MODULE = "vllm_kairos.emulation.fork_server"
CPU_MEMORY_GIB = 2.2  # a small model's CPU server without its KV cache: three processes
_MAX_MODEL_LEN = 32_768
_MAX_SEQUENCES = 256


def server_memory_gib(spec: ClusterSpec) -> float:
    """Memory that each server takes."""
    return EMULATED_MEMORY_GIB if spec.emulate is not None else CPU_MEMORY_GIB + spec.kv_cache_gib


def profile_path(spec: ClusterSpec) -> str | None:
    """The emulated device's profile as an absolute path; None without emulation. Raises ProfileError."""
    return str(resolve_profile(spec.emulate).absolute()) if spec.emulate is not None else None


def served_name(spec: ClusterSpec) -> str | None:
    """The model that the profile was measured with, whatever model's files the servers read."""
    return _profile(spec).model if spec.emulate is not None else None


def flags(spec: ClusterSpec) -> list[str]:
    """Flags of every server: the profile's block size and token budget, and room for long prompts.

    The small model whose tokenizer is used knows far fewer positions than the emulated one.
    """
    profile = _profile(spec)
    values = {
        "--dtype": spec.dtype or "bfloat16",
        "--block-size": profile.block_size_tokens,
        "--max-num-batched-tokens": profile.token_budget_tokens,
        "--max-num-seqs": _MAX_SEQUENCES,
        "--max-model-len": _MAX_MODEL_LEN,
        "--hf-overrides": json.dumps({"max_position_embeddings": 2**20}),
        "--distributed-executor-backend": "vllm_kairos.emulation.EmulatedExecutor",
    }
    return ["--enforce-eager", *(str(word) for pair in values.items() for word in pair)]


def engine_settings(spec: ClusterSpec, name: str) -> dict[str, Any]:
    """The server's part of `--additional-config`; empty without emulation. Servers draw different noise.

    Raises ConfigError for what the server would refuse, and for another profile than the cluster's.
    """
    if spec.emulate is None:
        return {}
    if "profile" in spec.emulation:
        raise ConfigError(f"emulation.profile must be left out, emulate names it, got {spec.emulation['profile']!r}")
    parse_emulation({"kairos": {"emulation": {"profile": spec.emulate, **spec.emulation}}})
    number = int("".join(filter(str.isdigit, name)) or 0) * 2 + name.startswith("d")
    seed = int(spec.emulation.get("seed") or 0) * 1000 + number
    settings = {"profile": profile_path(spec)} | dict(spec.emulation) | {"seed": seed}
    if settings.get("record") is not None:
        settings["record"] = f"{settings['record']}.{name}"
    return {"emulation": settings}


def connector(*, is_wrapped: bool) -> dict[str, Any]:
    """The emulated connector, inside ours or by itself."""
    inner = "EmulatedNixlConnector"
    return {"kv_connector_extra_config": {"kairos_inner": inner}} if is_wrapped else {"kv_connector": inner}


def environment(plugins: str) -> dict[str, str]:
    """Select the emulated platform and, beside `plugins`, the control routes; one thread is plenty.

    Engine cores are forked from their API servers, which have imported all that they need.
    """
    return {
        "KAIROS_PLATFORM": "emulated",
        "VLLM_PLUGINS": f"{plugins},kairos-emulation",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    }


def _profile(spec: ClusterSpec) -> Profile:
    return load_profile(profile_path(spec) or "")
