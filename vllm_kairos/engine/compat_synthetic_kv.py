"""A KV connector that claims to hold a request's first tokens, so that any batch shape costs one step to set up.

Loaded by vLLM by module path. The profiler runs shapes such as "16 decodes of 2,000 tokens each";
computing those 32,000 tokens first would take far longer than the step to be measured. Step time
does not depend on what the KV cache holds, so the blocks are allocated and their content is left
at what `register_kv_caches` wrote: random numbers, since never-written pages all map to one
physical page and would be read from cache.
"""

from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, SupportsHMA

from vllm_kairos.engine.compat_inprocess import HELD_TOKENS_PARAM

_PATTERN_ELEMENTS = 1 << 16


class SyntheticKvConnector(KVConnectorBase_V1, SupportsHMA):
    """Matches `kv_transfer_params[HELD_TOKENS_PARAM]` tokens of a request and loads nothing."""

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        held = int((request.kv_transfer_params or {}).get(HELD_TOKENS_PARAM, 0))
        return max(0, min(held, request.num_tokens - 1) - num_computed_tokens), False

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        for cache in kv_caches.values():
            for tensor in cache if isinstance(cache, (list, tuple)) else [cache]:
                _fill(tensor)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None: ...

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...


def _fill(tensor: Any) -> None:
    """Write small random numbers into every element, in pieces, without a second cache-sized tensor."""
    if not tensor.dtype.is_floating_point or tensor.element_size() < 2:
        tensor.fill_(1)
        return
    for block in tensor:  # the first axis may be strided; each slice is filled on its own
        if block.numel() > _PATTERN_ELEMENTS:
            _fill(block)
        else:
            block.copy_(_pattern(block.numel(), tensor.dtype, tensor.device).view(block.shape))


_patterns: dict[tuple[torch.dtype, torch.device], Any] = {}


def _pattern(elements: int, dtype: torch.dtype, device: torch.device) -> Any:
    key = (dtype, device)
    if key not in _patterns:
        _patterns[key] = torch.randn(_PATTERN_ELEMENTS, device=device).mul_(0.1).to(dtype)
    return _patterns[key][:elements]
