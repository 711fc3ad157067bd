"""Profiles of the Llama 3 models, fitted to steps that were added up from measured operators."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.profiles import gpus
from benchmarks.profiles.operators import Operators, Sizes, samples
from benchmarks.profiles.shipping import SEED, Identity, kv_capacity_tokens, profile_of
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.fitting.fit import fit

_A100_BYTES = 79.2 * 2**30  # as CUDA reports it
_H100_BYTES = 79.1 * 2**30
_DECODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_DONE = (0, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 14336)
_LONGEST = 16384  # attention was measured to it

_SUMMED = (
    "Prefill steps: layers x (linear operators at the step's tokens + attention of the chunk) + LM head. "
    "Decode steps: the same with the measured attention of the batch, every sequence equally long. "
    "Mixed steps were not measured whole: layers x (linear operators at chunk + batch tokens + attention of the chunk "
    "+ attention of the batch) + LM head, the two attentions one after the other as vLLM's FlashAttention ran them when "
    "they were measured apart. Attention of a chunk behind a cached prefix p was measured at p = 0 only: causal attention of "
    "n+p tokens less that of p, never below that of n alone or of one query over p. "
    "Held-out errors are against such sums, not against an engine."
)
_OVERHEAD = (
    " period_overhead_s is scheduling, input preparation and sampling between steps, which the operator tables leave out: "
    "vidur's A100 CPU tables have {found} at 8 to 32 sequences for vLLM without asynchronous scheduling; "
    "{chosen:g} ms is taken for every step."
)
_OVERHEAD_S = {1: 0.002, 4: 0.003}
_OVERHEAD_FOUND = {1: "1.2 to 4.6 ms (Llama-2-7B, TP 1)", 4: "1.8 to 5.0 ms (Llama-2-70B, TP 4)"}


def _a100(data: Path, model: gpus.Llama, name: str) -> Profile:
    inputs = (
        "Inputs: linear operators from vidur (MIT), vLLM 0.14 attention, matrix products and all-reduce from "
        "aiconfigurator-core 0.12.0 (Apache-2.0). "
    )
    identity = _identity(model, "NVIDIA A100-SXM4-80GB", _A100_BYTES, name, "0.14.0", 2048, inputs)
    return _fitted(identity, gpus.a100(data, model), _TOKENS, model)


def _identity(
    model: gpus.Llama, hardware: str, device_bytes: float, name: str, version: str, budget: int, inputs: str
) -> Identity:
    overhead_s = _OVERHEAD_S[model.devices]
    return Identity(
        hardware=hardware if model.devices == 1 else f"{model.devices}x {hardware}",
        model=name,
        vllm_version=version,
        engine_flags=(f"--tensor-parallel-size={model.devices}", "--dtype=bfloat16", f"--max-num-batched-tokens={budget}"),
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_capacity_tokens=kv_capacity_tokens(
            device_bytes=device_bytes,
            devices=model.devices,
            weights_bytes=model.weights_bytes,
            kv_bytes_per_token=model.kv_bytes_per_token,
        ),
        token_budget_tokens=budget,
        period_overhead_s=overhead_s,
        note="added up from public operator measurements, not measured as whole steps; see source",
        source=inputs + _SUMMED + _OVERHEAD.format(found=_OVERHEAD_FOUND[model.devices], chosen=overhead_s * 1e3),
    )


def _fitted(identity: Identity, operators: Operators, tokens: tuple[int, ...], model: gpus.Llama) -> Profile:
    sizes = Sizes(
        tokens=tokens,
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
}
