"""Profiles of the Llama 3 models, fitted to steps that were added up from measured operators."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.profiles import gpus
from benchmarks.profiles.operators import Operators, Sizes, samples
from benchmarks.profiles.shipping import SEED, Identity, kv_capacity_tokens, profile_of
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.fitting.fit import fit

_DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_DONE = (0, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 14336)
_LONGEST = 16384  # attention was measured to it

_SUMMED = (
    "Prefill steps: layers x (linear operators at the step's tokens + attention of the chunk) + LM head. "
    "Decode steps: the same with the measured attention of the batch, every sequence equally long. "
    "Mixed steps were not measured whole: layers x (linear operators at chunk + batch tokens + attention of the chunk "
    "+ attention of the batch) + LM head, as if the two attentions ran one after the other. On the RTX PRO 6000, where both "
    "were measured in one call too, such a sum is off by 7% of the step on average: 0% to 5% short below 65,536 KV tokens, "
    "11% to 131,072, 18% to 262,144 (medians). Attention of a chunk behind a cached prefix was measured without a prefix only: "
    "causal attention of chunk and prefix less that of the prefix, never below that of the chunk or of one query over it. "
    "Held-out errors are against such sums, not against an engine."
)


def _a100(data: Path, model: gpus.Llama, name: str) -> Profile:
    inputs = (
        "Inputs: linear operators from vidur (MIT); attention, LM head and all-reduce of vLLM 0.14 from "
        "aiconfigurator-core 0.12.0 (Apache-2.0). "
    )
    overhead_s, found = (
        (0.002, "1.2 to 4.6 ms (Llama-2-7B, TP 1)") if model.devices == 1 else (0.003, "1.8 to 5.0 ms (70B, TP 4)")
    )
    overhead = (
        f"{overhead_s * 1e3:g} ms is taken for every step, where vidur's A100 CPU tables have {found} at 8 to 32 sequences "
        "for vLLM without asynchronous scheduling."
    )
    device = _Device(name="NVIDIA A100-SXM4-80GB", memory_bytes=79.2 * 2**30, vllm="0.14.0", budget_tokens=2048)
    return _fitted(_identity(model, device, name, inputs, overhead_s, overhead), gpus.a100(data, model))


def _h100(model: gpus.Llama, name: str, inputs: str, operators: Operators) -> Profile:
    overhead_s = 0.001 if model.devices == 1 else 0.0015
    overhead = (
        f"{overhead_s * 1e3:g} ms is taken for every step: vLLM 0.24 schedules asynchronously, and the RTX PRO 6000 run of "
        "LLMServingSim shows 0.2 to 0.6 ms for vLLM 0.19; several devices take longer to hand work to."
    )
    device = _Device(name="NVIDIA H100-SXM5-80GB", memory_bytes=79.1 * 2**30, vllm="0.24.0", budget_tokens=8192)
    inputs += " attention, LM head and all-reduce of vLLM 0.24 from aiconfigurator-core 0.12.0 (Apache-2.0). "
    return _fitted(_identity(model, device, name, inputs, overhead_s, overhead), operators)


def _h100_8b(data: Path) -> Profile:
    inputs = (
        "Inputs: matrix products from LLMServingSim (MIT), measured to 2,048 tokens and beyond that grown as aiconfigurator's "
        "4096 x 6144 product grows to 32,768; norms, rotary embedding and activation from vidur's Llama-2-7B on H100 (MIT), as "
        "vLLM fuses them, to 4,096 tokens and in proportion beyond (its activation is 11008 wide, not 14336);"
    )
    return _h100(gpus.LLAMA_8B, "meta-llama/Llama-3.1-8B", inputs, gpus.h100_8b(data))


def _h100_70b(data: Path) -> Profile:
    inputs = (
        "Inputs: linear operators from vidur's Llama-2-70B on H100 at TP 4 (MIT), whose layers have Llama-3.1-70B's shape, to "
        "4,096 tokens and in proportion beyond;"
    )
    return _h100(gpus.LLAMA_70B, "meta-llama/Llama-3.1-70B", inputs, gpus.h100_70b(data))


@dataclass(frozen=True, kw_only=True)
class _Device:
    name: str
    memory_bytes: float
    """As CUDA reports it."""
    vllm: str
    """The release that attention was measured with."""
    budget_tokens: int
    """vLLM's default for a server on this device."""


def _identity(model: gpus.Llama, device: _Device, name: str, inputs: str, overhead_s: float, overhead: str) -> Identity:
    flags = (f"--tensor-parallel-size={model.devices}", "--dtype=bfloat16", f"--max-num-batched-tokens={device.budget_tokens}")
    return Identity(
        hardware=device.name if model.devices == 1 else f"{model.devices}x {device.name}",
        model=name,
        vllm_version=device.vllm,
        engine_flags=flags,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_capacity_tokens=kv_capacity_tokens(
            device_bytes=device.memory_bytes,
            devices=model.devices,
            weights_bytes=model.weights_bytes,
            kv_bytes_per_token=model.kv_bytes_per_token,
        ),
        token_budget_tokens=device.budget_tokens,
        period_overhead_s=overhead_s,
        note="added up from public operator measurements, not measured as whole steps; see source",
        source=f"{inputs}{_SUMMED} period_overhead_s: scheduling, input preparation and sampling are in no table; {overhead}",
    )


def _fitted(identity: Identity, operators: Operators) -> Profile:
    sizes = Sizes(
        tokens=_TOKENS,
        done=_DONE,
        decodes=_DECODES,
        most_prompt_tokens=_LONGEST,
        most_mixed_tokens=2048,
        kv_capacity_tokens=identity.kv_capacity_tokens,
    )
    return profile_of(identity, fit(samples(operators, sizes), seed=SEED))


BUILDERS: Mapping[str, Callable[[Path], Profile]] = {
    "a100-llama3-8b": lambda data: _a100(data, gpus.LLAMA_8B, "meta-llama/Meta-Llama-3-8B"),
    "a100-llama3-70b-tp4": lambda data: _a100(data, gpus.LLAMA_70B, "meta-llama/Meta-Llama-3-70B"),
    "h100-llama3.1-8b": _h100_8b,
    "h100-llama3.1-70b-tp4": _h100_70b,
}
