"""The profile of an RTX PRO 6000, whose attention was measured with prompt chunk and decode batch in one call."""

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.profiles.gpus import LLAMA_8B
from benchmarks.profiles.operators import step_sample
from benchmarks.profiles.shipping import SEED, Identity, kv_capacity_tokens, profile_of
from benchmarks.profiles.tables import Curve, curve, read_rows, where
from vllm_kairos.fitting.artifact import Profile
from vllm_kairos.fitting.features import Sample
from vllm_kairos.fitting.fit import fit

_DEVICE_BYTES = 95.0 * 2**30
_LAYER = ("layernorm", "layernorm", "qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
_ONCE = ("embedding", "final_layernorm")
_PER_SEQUENCE = ("lm_head", "sampler")
_BUDGET_TOKENS = 2048
_MOST_KV_TOKENS = 262144  # half the memory: see _SOURCE

_SOURCE = (
    "Input: operators of vLLM 0.19 from LLMServingSim (MIT). Every step is layers x (linear operators at chunk + batch tokens "
    "+ attention) + embedding, last norm, LM head and sampler. Mixed steps are the only ones here whose attention was measured "
    "with the chunk and the batch in one call, a chunk behind a cached prefix included; whole steps were still added up, and "
    "held-out errors are against such sums. Steps that hold more than 262,144 KV tokens were left out: there the joint call "
    "takes up to twice its two parts, which no sum of a batch's and a chunk's cost can follow (from 131,072 tokens the "
    "fit is 14 to 21% short). period_overhead_s is 0.5 ms: the same source's run of 300 requests takes 11.5 ms a step with one "
    "sequence running and 26.3 ms with 128, its operators 11.3 and 25.7; vLLM 0.19 schedules asynchronously."
)


def build(data: Path) -> Profile:
    """Fit the profile."""
    capacity = kv_capacity_tokens(
        device_bytes=_DEVICE_BYTES,
        devices=1,
        weights_bytes=LLAMA_8B.weights_bytes,
        kv_bytes_per_token=LLAMA_8B.kv_bytes_per_token,
    )
    folder = data / "llmservingsim"
    identity = Identity(
        hardware="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        model="meta-llama/Llama-3.1-8B",
        vllm_version="0.19.0",
        engine_flags=("--tensor-parallel-size=1", "--dtype=bfloat16", f"--max-num-batched-tokens={_BUDGET_TOKENS}"),
        kv_bytes_per_token=LLAMA_8B.kv_bytes_per_token,
        kv_capacity_tokens=capacity,
        token_budget_tokens=_BUDGET_TOKENS,
        period_overhead_s=0.0005,
        note="added up from public operator measurements, not measured as whole steps; see source",
        source=_SOURCE,
    )
    return profile_of(identity, fit(_samples(folder), seed=SEED))


BUILDERS: Mapping[str, Callable[[Path], Profile]] = {"rtxpro6000-llama3.1-8b": build}


def _samples(folder: Path) -> list[Sample]:
    outside_s = _outside_attention(folder)
    found = []
    for row in read_rows(folder / "RTXPRO6000_Llama-3.1-8B_tp1_attention.csv.gz"):
        tokens, done, decodes, context = (int(row[name]) for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        if done + decodes * context > _MOST_KV_TOKENS:
            continue
        step_s = LLAMA_8B.layers * float(row["time_us"]) * 1e-6 + outside_s(tokens, decodes)
        found.append(step_sample(tokens, done, decodes, context, step_s))
    return found


def _outside_attention(folder: Path) -> Callable[[int, int], float]:
    dense = read_rows(folder / "RTXPRO6000_Llama-3.1-8B_tp1_dense.csv.gz")
    single = read_rows(folder / "RTXPRO6000_Llama-3.1-8B_tp1_per_sequence.csv.gz")
    layer = [_operator(dense, name, "tokens") for name in _LAYER]
    once = [_operator(dense, name, "tokens") for name in _ONCE]
    ends = [_operator(single, name, "sequences") for name in _PER_SEQUENCE]

    def seconds(tokens: int, decodes: int) -> float:
        size, sequences = tokens + decodes, decodes + (1 if tokens else 0)
        per_layer_s = sum(part.at(size) for part in layer)
        return LLAMA_8B.layers * per_layer_s + sum(part.at(size) for part in once) + sum(part.at(sequences) for part in ends)

    return seconds


def _operator(rows: list[Mapping[str, str]], name: str, size: str) -> Curve:
    return curve(where(rows, layer=name), size, "time_us", 1e-6)
