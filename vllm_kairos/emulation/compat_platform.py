"""The CPU platform without what only computing on a CPU asks for. Read against vLLM 0.30-0.33."""

import os
from typing import Any

from vllm.platforms.cpu import CpuPlatform

from vllm_kairos.emulation.forked import let_go_of_parent

_DEFAULT_BLOCK_TOKENS = 16  # as on GPUs
_METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"


class EmulatedPlatform(CpuPlatform):
    """Scheduling as GPU users run it.

    Seam: CpuPlatform.check_and_update_config turns async scheduling off, enlarges the KV block, and
    for MLA models turns chunked prefill and prefix caching off and widens the token budget, all for
    the sake of CPU kernels that never run here. It also has the engine core spawned for the sake of
    OpenMP; an emulated one may be forked from the API server, which spares it all imports.
    """

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        kept = [
            (scheduler, "async_scheduling", scheduler.async_scheduling),
            (scheduler, "enable_chunked_prefill", scheduler.enable_chunked_prefill),
            (scheduler, "max_num_batched_tokens", scheduler.max_num_batched_tokens),
            (cache, "enable_prefix_caching", cache.enable_prefix_caching),
            (cache, "block_size", cache.block_size if cache.user_specified_block_size else _DEFAULT_BLOCK_TOKENS),
        ]
        method = os.environ.get(_METHOD_VARIABLE)
        super().check_and_update_config(vllm_config)
        for config, name, value in kept:
            setattr(config, name, value)
        if method == "fork":
            os.environ[_METHOD_VARIABLE] = method
            _FORKING.prepare()


class _Forking:
    """Has a forked engine core let go of what is the API server's, from the first time that one may be forked."""

    def __init__(self) -> None:
        self._prepared = False

    def prepare(self) -> None:
        if not self._prepared:
            os.register_at_fork(after_in_child=let_go_of_parent)
            self._prepared = True


_FORKING = _Forking()
