"""EmulatedExecutor: vLLM's in-process executor over a worker that has no device.

Read against vLLM 0.30-0.33; tests/emulation/test_compat_executor.py fails when a seam moves.
"""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import torch
from vllm.distributed.kv_transfer import ensure_kv_transfer_shutdown, has_kv_transfer_group
from vllm.logger import init_logger
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin
from vllm.v1.worker.worker_base import CompilationTimes

from vllm_kairos.emulation import compat_connector
from vllm_kairos.emulation.engine import EmulatedEngine, EmulatedStep
from vllm_kairos.emulation.faults import Fault, FaultKind, parse_fault
from vllm_kairos.emulation.realtime import go_before_others
from vllm_kairos.emulation.sequences import Turn
from vllm_kairos.emulation.settings import parse_emulation
from vllm_kairos.emulation.words import printable_words
from vllm_kairos.errors import ConfigError
from vllm_kairos.fitting.artifact import load_profile
from vllm_kairos.profiles import resolve_profile

_BYTES_PER_ELEMENT = 2
_LEAST_WORDS = 16

logger = init_logger("vllm.kairos.emulation")


class EmulatedExecutor(UniProcExecutor):
    """Seam: UniProcExecutor runs every RPC on `driver_worker`, and a worker's AsyncModelRunnerOutput only when asked."""

    def _init_executor(self) -> None:
        if parse_emulation(self.vllm_config.additional_config).realtime and not go_before_others():
            logger.info("This engine core may not run in real time: on a busy machine steps will end late.")
        self.driver_worker = EmulatedWorker(self.vllm_config)

    def get_kv_connector_handshake_metadata(self) -> list[Any]:
        """Nothing to shake hands over: NIXL's scheduler side then opens no listener of its own."""
        return []


class EmulatedWorker:
    """Answers what vLLM asks of a worker. An RPC that is not here is refused by vLLM, by name."""

    def __init__(self, vllm_config: Any) -> None:
        self._config = vllm_config
        self._settings = settings = parse_emulation(vllm_config.additional_config)
        self._profile = load_profile(resolve_profile(settings.profile))
        if vllm_config.parallel_config.world_size > 1 or vllm_config.speculative_config is not None:
            raise ConfigError("an emulated engine takes one device and no speculative decoding: a profile speaks of the whole")
        self.engine = EmulatedEngine(settings, self._profile.step_model, _words(vllm_config.model_config))
        self._step: tuple[EmulatedStep, ModelRunnerOutput] | None = None

    def get_kv_cache_spec(self) -> dict[str, Any]:
        """One layer that takes the bytes per token of the whole profiled model."""
        block_size = self._config.cache_config.block_size
        head_size = self._profile.kv_bytes_per_token // (2 * _BYTES_PER_ELEMENT)
        return {"emulated": FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=head_size, dtype=torch.bfloat16)}

    def determine_available_memory(self) -> int:
        """Bytes that hold the KV capacity, and the pool's null block."""
        block_size = self._config.cache_config.block_size
        capacity_tokens = self._settings.kv_capacity_tokens or self._profile.kv_capacity_tokens
        if not capacity_tokens:
            raise ConfigError(f"emulation.kv_capacity_tokens must be given: profile {self._settings.profile!r} has none")
        (spec,) = self.get_kv_cache_spec().values()
        return int((capacity_tokens // block_size + 1) * spec.page_size_bytes)

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBHNC", "LBNHC"]

    def set_kv_cache_layout(self, layout_name: str) -> None: ...

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        if self._config.kv_transfer_config is not None:
            setup = compat_connector.Setup(self._settings, self.engine.faults, self._profile.kv_bytes_per_token)
            compat_connector.make_worker_side(self._config, kv_cache_configs[0], setup)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(language_model=0.0, encoder=0.0)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def update_max_model_len(self, max_model_len: int) -> None: ...

    def reset_mm_cache(self) -> None: ...

    def reset_encoder_cache(self) -> None: ...

    def synchronize_device(self) -> None: ...

    def execute_dummy_batch(self) -> None: ...

    def shutdown(self) -> None:
        ensure_kv_transfer_shutdown()
        self.engine.close()

    def emulation_status(self) -> dict[str, Any]:
        """What the control route shows."""
        engine = self.engine
        return {"steps": engine.steps, "elapsed_s": engine.elapsed_s, "slowdown": engine.faults.slowdown(engine.elapsed_s)}

    def emulation_fault(self, fault: dict[str, Any]) -> None:
        """Have `fault` happen; ConfigError says what is wrong with it."""
        self.engine.faults.add(parse_fault(fault))
        self._begin_faults(computes=False)

    def execute_model(self, scheduler_output: Any) -> ModelRunnerOutput | None:
        """Hand the step to the device. Seam: a step without tokens is answered here, any other by `sample_tokens`."""
        self._begin_faults(computes=scheduler_output.total_num_scheduled_tokens > 0)
        engine = self.engine
        engine.sequences.end(scheduler_output.finished_req_ids)
        transfers = self._transfers(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            if transfers.kv_connector_output is None:
                compat_connector.await_news(self._settings.idle_poll_s)
            return transfers
        for request in scheduler_output.scheduled_new_reqs:
            ids = request.prefill_token_ids or _prompt(request)
            engine.sequences.begin(request.req_id, len(_prompt(request)), ids)
        self._resume(scheduler_output.scheduled_cached_reqs)
        step = engine.hand_over(list(_turns(scheduler_output)))
        self._step = step, _output(step, transfers.kv_connector_output)
        return None

    def sample_tokens(self, grammar_output: Any) -> AsyncModelRunnerOutput:
        """The step's output, there once the device is done with it."""
        assert self._step is not None, "vLLM samples after it executes"
        (step, output), self._step = self._step, None
        return _Pending(self.engine, step, output)

    def _transfers(self, scheduler_output: Any) -> ModelRunnerOutput:
        """Let the connector start and report transfers. Seam: `kv_connector_no_forward` is that part of a model runner."""
        if not has_kv_transfer_group():
            return ModelRunnerOutput(req_ids=[], req_id_to_index={})
        return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduler_output, self._config)

    def _resume(self, cached: Any) -> None:
        """Take preempted requests in anew: a token under way when they were preempted may be lost.

        Seam: `all_token_ids` holds every resumed request's tokens, or they come as new ones (0.30-0.33).
        """
        for request_id in cached.resumed_req_ids:
            index = cached.req_ids.index(request_id)
            if (ids := cached.all_token_ids.get(request_id)) is not None:
                self.engine.sequences.begin(request_id, len(ids) - cached.num_output_tokens[index], ids)

    def _begin_faults(self, *, computes: bool) -> None:
        engine = self.engine
        for fault in engine.faults.begin(engine.steps + 1, engine.elapsed_s, computes=computes):
            _carry_out(fault)


class _Pending(AsyncModelRunnerOutput):
    """An output that is there when the device is done."""

    def __init__(self, engine: EmulatedEngine, step: EmulatedStep, output: ModelRunnerOutput) -> None:
        self._engine, self._step, self._output = engine, step, output

    def get_output(self) -> ModelRunnerOutput:
        self._engine.wait(self._step)
        return self._output


def _words(model_config: Any) -> tuple[int, ...]:
    tokenizer = cached_tokenizer_from_config(model_config)
    words = printable_words(tokenizer.get_vocab().items()) if tokenizer is not None else ()
    if len(words) >= _LEAST_WORDS:
        return words
    logger.warning("The tokenizer has no plain words: the emulated engine says arbitrary tokens.")
    size = model_config.get_vocab_size()
    return tuple(range(size // 2, size))  # special tokens mostly come first


def _prompt(request: Any) -> Any:
    """The prompt's tokens; an embedded prompt counts by its length alone."""
    return request.prompt_token_ids if request.prompt_token_ids is not None else [0] * len(request.prompt_embeds)


def _turns(scheduler_output: Any) -> Iterator[Turn]:
    scheduled = scheduler_output.num_scheduled_tokens
    for request in scheduler_output.scheduled_new_reqs:
        yield Turn(request.req_id, request.num_computed_tokens, scheduled[request.req_id])
    cached = scheduler_output.scheduled_cached_reqs
    for request_id, computed in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
        yield Turn(request_id, computed, scheduled[request_id])


def _output(step: EmulatedStep, kv_connector_output: Any) -> ModelRunnerOutput:
    ids = list(step.sampled)
    index = {request_id: position for position, request_id in enumerate(ids)}
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index=index,
        sampled_token_ids=list(step.sampled.values()),
        kv_connector_output=kv_connector_output,
    )


def _carry_out(fault: Fault) -> None:
    logger.warning("Emulated fault: %s", fault)
    if fault.kind is FaultKind.CRASH:
        os.kill(os.getpid(), signal.SIGKILL)
    until_s = time.monotonic() + fault.duration_s
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(60.0, left_s))
