"""The CPU platform without what only computing on a CPU asks for. Read against vLLM 0.30-0.33."""

from typing import Any

from vllm.platforms.cpu import CpuPlatform

_DEFAULT_BLOCK_TOKENS = 16  # as on GPUs


class EmulatedPlatform(CpuPlatform):
    """Scheduling as GPU users run it.

    Seam: CpuPlatform.check_and_update_config turns async scheduling off, enlarges the KV block, and
    for MLA models turns chunked prefill and prefix caching off and widens the token budget, all for
    the sake of CPU kernels that never run here.
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
        super().check_and_update_config(vllm_config)
        for config, name, value in kept:
            setattr(config, name, value)
