"""Drive one stock vLLM engine step by step inside this process; the profiler's seams.

vllm is imported when an engine is built, so that the plain values here need none.
"""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from vllm_kairos.errors import ConfigError, ProfileError

HELD_TOKENS_PARAM = "kairos_profile_held_tokens"
_CONNECTOR_MODULE = "vllm_kairos.engine.compat_synthetic_kv"


@dataclass(frozen=True, slots=True)
class StepPart:
    """What one request contributed to a step."""

    scheduled_tokens: int
    held_tokens: int  # KV tokens it held before the step
    is_decode: bool


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One executed step: its parts, the engine core's time for it and the whole loop iteration's."""

    parts: tuple[StepPart, ...]
    step_s: float  # schedule to output, in the engine core
    period_s: float  # step to step, output processing included


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the built engine says of itself."""

    vllm_version: str
    model: str
    device: str
    device_name: str
    dtype: str
    block_size_tokens: int
    kv_blocks: int
    kv_bytes_per_token: int
    max_model_len_tokens: int
    max_running_requests: int
    token_budget_tokens: int
    vocab_size: int

    @property
    def kv_capacity_tokens(self) -> int:
        return self.block_size_tokens * self.kv_blocks


class InprocessEngine:
    """A stock engine whose every step the caller takes and may bound.

    Differences from a served engine, each needed to address a batch shape exactly: prefix caching
    and async scheduling are off, and a synthetic connector stands in for the transfer of KV.
    """

    def __init__(self, engine: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._core = engine.engine_core.engine_core
        self._clock = clock
        self._timer = _CoreTimer(self._core, clock)
        self.facts = _facts(engine.vllm_config, self._core.scheduler)

    @classmethod
    def build(cls, engine_argv: Sequence[str], *, one_cpu: bool = False) -> Self:
        """Start the engine that `vllm serve` flags describe.

        `one_cpu` says that this process is pinned to one CPU: a CPU engine is then timed by the CPU
        time it uses, which is what a step takes when nothing else runs on that CPU.

        Raises ConfigError for a flag vLLM refuses or a missing vLLM, ProfileError when the engine
        does not start.
        """
        try:
            from vllm.usage.usage_lib import UsageContext
            from vllm.v1.engine.llm_engine import LLMEngine
        except ImportError as error:
            raise ConfigError(
                f"profile needs an importable vLLM (pip install vllm-kairos[cpu] or [gpu]), got: {error}"
            ) from error
        try:
            arguments = _engine_arguments(engine_argv)
            engine = LLMEngine.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
            on_cpu = engine.vllm_config.device_config.device_type == "cpu"
            return cls(engine, cpu_clock() if one_cpu and on_cpu else time.perf_counter)
        except ConfigError:
            raise
        except Exception as error:  # vLLM raises bare Exception when a worker dies at start
            raise ProfileError(f"engine did not start: {_first_line(error)}") from error

    def add(self, request_id: str, prompt_token_ids: Sequence[int], *, held_tokens: int) -> None:
        """Queue a request whose first `held_tokens` tokens count as computed; it never ends by itself."""
        from vllm import SamplingParams

        room = self.facts.max_model_len_tokens - len(prompt_token_ids)
        params = SamplingParams(
            max_tokens=room,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            extra_args={"kv_transfer_params": {HELD_TOKENS_PARAM: held_tokens}},
        )
        self._engine.add_request(request_id, {"prompt_token_ids": list(prompt_token_ids)}, params)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; their KV blocks are free at once."""
        if request_ids:
            self._engine.abort_request(list(request_ids))

    def step(self, budget_tokens: int | None = None) -> StepRecord:
        """Run one engine step of at most `budget_tokens` tokens. Raises ProfileError when the engine fails in it."""
        scheduler = self._core.scheduler
        configured = scheduler.max_num_scheduled_tokens
        scheduler.max_num_scheduled_tokens = min(budget_tokens or configured, configured)
        started_s = self._clock()
        try:
            self._engine.step()
        except Exception as error:  # a worker's own exception arrives as whatever its executor makes of it
            raise ProfileError(f"engine failed in a step: {_first_line(error)}") from error
        finally:
            scheduler.max_num_scheduled_tokens = configured
        return StepRecord(self._timer.parts, self._timer.step_s, self._clock() - started_s)

    def close(self) -> None:
        """Stop the engine and the worker processes it started."""
        self._engine.engine_core.shutdown()


class _CoreTimer:
    """Times the engine core's own step and keeps what its scheduler put into it."""

    def __init__(self, core: Any, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.parts: tuple[StepPart, ...] = ()
        self.step_s = 0.0
        core.scheduler.schedule = self._recorded(core.scheduler.schedule)
        core.step_fn = self._timed(core.step_fn)

    def _recorded(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.parts = step_parts(output)
            return output

        return recorded

    def _timed(self, step: Callable[[], Any]) -> Callable[[], Any]:
        def timed() -> Any:
            self.parts = ()
            started_s = self._clock()
            outputs = step()
            self.step_s = self._clock() - started_s
            return outputs

        return timed


def cpu_clock() -> Callable[[], float]:
    """A clock of the CPU seconds that this process and its worker processes have used."""
    workers = [child.pid for child in multiprocessing.active_children() if child.pid]
    # Linux names a process's CPU clock by its inverted id: clock_getcpuclockid(3), which Python does not wrap.
    clocks = [time.CLOCK_PROCESS_CPUTIME_ID, *(~pid << 3 | 2 for pid in workers)]
    return lambda: sum(map(time.clock_gettime, clocks))


def step_parts(output: Any) -> tuple[StepPart, ...]:
    """Read a SchedulerOutput; a request is a decode once it has produced a token."""
    tokens = output.num_scheduled_tokens
    new = [StepPart(tokens[item.req_id], item.num_computed_tokens, False) for item in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    rows = zip(cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, strict=True)
    return (*new, *(StepPart(tokens[name], computed, produced > 0) for name, computed, produced in rows))


def _engine_arguments(engine_argv: Sequence[str]) -> Any:
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ConfigError(f"engine arguments: {message}")

    parser = EngineArgs.add_cli_args(Parser(allow_abbrev=False))
    arguments = EngineArgs.from_cli_args(parser.parse_args(list(engine_argv)))
    arguments.enable_prefix_caching = False
    arguments.async_scheduling = False
    arguments.scheduler_cls = None
    arguments.additional_config = {}
    arguments.disable_log_stats = True
    if current_platform.is_cpu() and arguments.distributed_executor_backend is None:
        arguments.distributed_executor_backend = "mp"  # what a CPU server always uses: the hand-over to the worker counts
    arguments.kv_transfer_config = KVTransferConfig(
        kv_connector="SyntheticKvConnector", kv_role="kv_both", kv_connector_module_path=_CONNECTOR_MODULE
    )
    return arguments


def _facts(config: Any, scheduler: Any) -> EngineFacts:
    from vllm import __version__
    from vllm.platforms import current_platform

    cache = scheduler.kv_cache_config
    blocks, block_size = cache.num_blocks, config.cache_config.block_size
    return EngineFacts(
        vllm_version=__version__,
        model=str(config.model_config.model),
        device=str(config.device_config.device_type),
        device_name=str(current_platform.get_device_name()),
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        block_size_tokens=block_size,
        kv_blocks=blocks,
        kv_bytes_per_token=sum(tensor.size for tensor in cache.kv_cache_tensors) // (blocks * block_size),
        max_model_len_tokens=config.model_config.max_model_len,
        max_running_requests=config.scheduler_config.max_num_seqs,
        token_budget_tokens=scheduler.max_num_scheduled_tokens,
        vocab_size=config.model_config.get_vocab_size(),
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
