"""An emulated engine: real vLLM with an executor that computes nothing and takes the time a profile predicts.

`vllm serve MODEL --distributed-executor-backend vllm_kairos.emulation.EmulatedExecutor
--additional-config '{"kairos": {"emulation": {"profile": "a100-llama3-8b"}}}'`: API server, engine
core, scheduler, KV block manager and HTTP are vLLM's own. docs/emulation.md has the rest.
"""

from typing import Any

__all__ = ["EmulatedExecutor"]


def __getattr__(name: str) -> Any:
    if name == "EmulatedExecutor":  # resolved when vLLM asks for it, so that importing us needs no vLLM
        from vllm_kairos.emulation.compat_executor import EmulatedExecutor

        return EmulatedExecutor
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
