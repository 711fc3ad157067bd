"""Builds the real scheduler on the CPU, offline, and plays the model runner for it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from vllm_kairos import KairosScheduler

BLOCK_SIZE = 16
EOS = 50256
MAX_MODEL_LEN = 16384

_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 50304,
    "max_position_embeddings": MAX_MODEL_LEN,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": EOS,
}


def write_model(folder: Path) -> str:
    """Write a tiny model's config.json; no weights are needed to schedule."""
    (folder / "config.json").write_text(json.dumps(_MODEL_CONFIG))
    return str(folder)


def build_scheduler(
    model: str,
    *,
    scheduler_class: Any = KairosScheduler,
    async_scheduling: bool = False,
    token_budget: int = 8192,
    max_sequences: int = 32,
    blocks: int = 10_000,
    block_size: int = BLOCK_SIZE,
    prefix_caching: bool = False,
    policy: str = "fcfs",
    draft_tokens: int = 0,
    long_prefill_threshold: int = 0,
    chunked_prefill: bool = True,
    connector: str | None = None,
    connector_extra: dict[str, Any] | None = None,
    pipeline_stages: int = 1,
    kairos: dict[str, Any] | None = None,
) -> Any:
    """A scheduler of `scheduler_class`, with everything real but the device."""
    model_config = ModelConfig(model=model, tokenizer=model, skip_tokenizer_init=True, dtype="float16", seed=42)
    cache_config = CacheConfig(
        block_size=block_size, gpu_memory_utilization=0.9, cache_dtype="auto", enable_prefix_caching=prefix_caching
    )
    scheduler_config = SchedulerConfig(
        max_num_seqs=max_sequences,
        max_num_batched_tokens=token_budget,
        max_model_len=MAX_MODEL_LEN,
        long_prefill_token_threshold=long_prefill_threshold,
        enable_chunked_prefill=chunked_prefill,
        async_scheduling=False,
        is_encoder_decoder=False,
        policy=policy,
    )
    config = VllmConfig(
        model_config=model_config,
        cache_config=cache_config,
        scheduler_config=scheduler_config,
        parallel_config=ParallelConfig(),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=_transfer_config(connector, connector_extra),
        speculative_config=_speculative_config(draft_tokens),
        additional_config={"kairos": kairos} if kairos is not None else {},
    )
    # The CPU platform turns async scheduling off and may resize the block; the mode under test is the argument's.
    config.scheduler_config.async_scheduling = async_scheduling
    config.cache_config.block_size = block_size
    config.parallel_config.pipeline_parallel_size = pipeline_stages
    return _from_config(config, scheduler_class, blocks, block_size)


def _speculative_config(draft_tokens: int) -> SpeculativeConfig | None:
    if not draft_tokens:
        return None
    return SpeculativeConfig(model="ngram", num_speculative_tokens=draft_tokens, prompt_lookup_max=2)


def _transfer_config(connector: str | None, extra: dict[str, Any] | None) -> KVTransferConfig | None:
    if connector is None:
        return None
    return KVTransferConfig(
        kv_connector=connector,
        kv_role="kv_both",
        engine_id="engine-under-test",
        kv_buffer_device="cpu",
        kv_connector_extra_config=extra or {},
        kv_load_failure_policy="recompute",
    )


def _from_config(config: VllmConfig, scheduler_class: Any, blocks: int, block_size: int) -> Any:
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_cache_config = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    config.cache_config.num_gpu_blocks = blocks
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=kv_cache_config,
        block_size=block_size,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def schedule_params(*chi: int) -> dict[str, Any]:
    """The kv_transfer_params of a deflected request."""
    return {"kairos": {"schema": 1, "chunk_schedule": list(chi)}}


def remote_params(tokens: int, block_size: int = BLOCK_SIZE) -> dict[str, Any]:
    """The kv_transfer_params of a request whose prompt another engine computed."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "prefill-engine",
        "remote_request_id": "remote-request",
        "remote_host": "127.0.0.1",
        "remote_port": 1234,
        "remote_block_ids": [list(range(1, -(-tokens // block_size) + 1))],
        "tp_size": 1,
    }


def make_request(
    request_id: str,
    prompt: int | list[int],
    *,
    max_tokens: int = 16,
    transfer: dict[str, Any] | None = None,
    priority: int = 0,
    arrival_time: float = 0.0,
    block_size: int = BLOCK_SIZE,
    mm_features: list[Any] | None = None,
    seed: int | None = None,
) -> Request:
    """A request of `prompt` tokens (a number, or the ids themselves) that generates up to `max_tokens`."""
    init_none_hash(sha256)
    first = 31 * sum(map(ord, request_id))
    ids = prompt if isinstance(prompt, list) else [(first + position) % 50_000 for position in range(prompt)]
    extra = {"kv_transfer_params": transfer} if transfer else None
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, extra_args=extra, seed=seed)
    return Request(
        request_id=request_id,
        prompt_token_ids=ids,
        sampling_params=sampling,
        pooling_params=None,
        priority=priority,
        arrival_time=arrival_time,
        mm_features=mm_features,
        block_hasher=get_request_block_hasher(block_size, sha256),
    )


def next_token(request: Any) -> int:
    """The token a model would sample: a function of everything before it, so that mistakes show in the output."""
    return hash(tuple(request.all_token_ids)) % 50_000


def run_model(scheduler: Any, output: Any, **connector_output: Any) -> ModelRunnerOutput:
    """What the workers answer to one step: one token per request past its prompt, no draft accepted."""
    ids = list(output.num_scheduled_tokens)
    sampled: list[list[int]] = []
    for request_id in ids:
        request = scheduler.requests.get(request_id)
        done = request is not None and not request.is_prefill_chunk
        sampled.append([next_token(request)] if done else [])
    kv_output = KVConnectorOutput(**connector_output) if connector_output else None
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
        kv_connector_output=kv_output,
    )


def step(scheduler: Any, **connector_output: Any) -> dict[str, int]:
    """One synchronous engine step; returns the tokens each request was given."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, run_model(scheduler, output, **connector_output))
    return dict(output.num_scheduled_tokens)


def warm_decodes(scheduler: Any, *names: str, prompt: int = 20, max_tokens: int = 1000) -> list[Request]:
    """Add requests and run their prompts, so that they decode from the next step on."""
    requests = [make_request(name, prompt, max_tokens=max_tokens) for name in names]
    for request in requests:
        scheduler.add_request(request)
    while any(request.num_output_tokens == 0 for request in requests):
        step(scheduler)
    return requests


def image(offset: int, length: int) -> Any:
    """A media item as the scheduler sees it."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return MultiModalFeatureSpec(
        data=None, modality="image", identifier=f"image-{offset}", mm_position=PlaceholderRange(offset=offset, length=length)
    )


def total(tokens: dict[str, int]) -> int:
    """Batch tokens of a step."""
    return sum(tokens.values())


def left_behind(scheduler: Any) -> SimpleNamespace:
    """Everything that must be empty once all requests have ended."""
    planner = scheduler._kairos_planner
    return SimpleNamespace(
        requests=dict(scheduler.requests),
        planned=len(planner._planned),
        prefills=list(planner._prefills),
        step=planner.step,
    )
