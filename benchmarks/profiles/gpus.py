"""The operators of each model and GPU, out of the tables that measured them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.profiles.operators import Operators
from benchmarks.profiles.tables import Curve, Row, curve, grid, read_rows, where

_BF16 = {"gemm_dtype": "bfloat16"}
_HEAD_ROWS = 65536  # the widest product measured; the vocabulary's share of it is taken
_VIDUR_LAYER = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
_SMALL = ("input_layernorm", "attn_rope", "post_attention_layernorm", "mlp_act", "add")


@dataclass(frozen=True, kw_only=True)
class Llama:
    """A dense model of the Llama 3 family on `devices` GPUs."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    devices: int
    weights_bytes: float
    vocabulary: int = 128256

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values in two bytes each, head size 128."""
        return 2 * 2 * 128 * self.kv_heads * self.layers


LLAMA_8B = Llama(layers=32, hidden=4096, heads=32, kv_heads=8, devices=1, weights_bytes=16.06e9)
LLAMA_70B = Llama(layers=80, hidden=8192, heads=64, kv_heads=8, devices=4, weights_bytes=141.1e9)


def a100(data: Path, model: Llama) -> Operators:
    """Linear operators measured by vidur, attention and LM head by aiconfigurator on vLLM 0.14."""
    name = "Meta-Llama-3-8B" if model.devices == 1 else "Meta-Llama-3-70B"
    linear = _vidur(data / f"vidur/a100_{name}_mlp.csv.gz", model.devices, _VIDUR_LAYER)
    return _operators(
        data / "aiconfigurator/a100_sxm_vllm0.14.0", model, lambda tokens: sum(part.at(tokens) for part in linear)
    )


def h100_8b(data: Path) -> Operators:
    """Products measured by LLMServingSim to 2,048 tokens and, beyond, grown as aiconfigurator's product of the same width."""
    folder = data / "aiconfigurator/h100_sxm_vllm0.24.0"
    rows = read_rows(data / "llmservingsim/H100_Llama-3.1-8B_tp1_layers.csv.gz")
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    products = [curve(where(rows, layer_name=name), "input", "latency(ns)", 1e-9) for name in names]
    wide = curve(where(read_rows(Path(f"{folder}_gemm.csv.gz")), n=6144, k=4096, **_BF16), "m", "latency_ms")
    small = _vidur(data / "vidur/h100_Llama-2-7b-hf_mlp.csv.gz", 1, _SMALL)
    measured = products[0].sizes[-1]

    def linear_s(tokens: int) -> float:
        seconds = sum(product.at(min(tokens, measured)) for product in products)
        if tokens > measured:
            seconds *= wide.at(tokens) / wide.at(measured)
        return seconds + sum(part.at(tokens) for part in small)

    return _operators(folder, LLAMA_8B, linear_s)


def h100_70b(data: Path) -> Operators:
    """Linear operators of Llama-2-70B, whose layers have the same shape, measured by vidur."""
    linear = _vidur(data / "vidur/h100_Llama-2-70b-hf_mlp.csv.gz", 4, _VIDUR_LAYER)
    folder = data / "aiconfigurator/h100_sxm_vllm0.24.0"
    return _operators(folder, LLAMA_70B, lambda tokens: sum(part.at(tokens) for part in linear))


def _vidur(path: Path, devices: int, names: Sequence[str]) -> list[Curve]:
    rows = where(read_rows(path), num_tensor_parallel_workers=devices)
    return [curve(rows, "num_tokens", f"time_stats.{name}.median") for name in names]


def _operators(prefix: Path, model: Llama, linear_s: Callable[[int], float]) -> Operators:
    shape = {"num_heads": model.heads // model.devices, "num_key_value_heads": model.kv_heads // model.devices}
    kind = {"kv_cache_dtype": "bfloat16", **shape}
    decode = grid(where(read_rows(Path(f"{prefix}_generation_attention.csv.gz")), **kind), "batch_size", "step", "latency_ms")
    prefill = where(read_rows(Path(f"{prefix}_context_attention.csv.gz")), batch_size=1, **kind)
    reduce_s = _all_reduce(Path(f"{prefix}_custom_allreduce.csv.gz"), model)
    return Operators(
        layers=model.layers,
        linear_s=lambda tokens: linear_s(tokens) + 2 * reduce_s(tokens),
        prefill_attention_s=prefix_attention(curve(prefill, "isl", "latency_ms"), _one_sequence(decode)),
        decode_attention_s=decode,
        head_s=_head(read_rows(Path(f"{prefix}_gemm.csv.gz")), model),
    )


def prefix_attention(whole: Curve, reading: Curve) -> Callable[[int, int], float]:
    """Attention of n tokens behind p cached ones, where only p = 0 was measured.

    The causal attention of n+p tokens less that of p does the same work. A chunk is at least as slow as
    without a prefix, and as a single query that reads the same keys.
    """

    def seconds(tokens: int, done: int) -> float:
        if not done:
            return whole.at(tokens)
        return max(whole.at(tokens + done) - whole.at(done), whole.at(tokens), reading.at(done))

    return seconds


def _one_sequence(decode: dict[tuple[int, int], float]) -> Curve:
    return Curve((context, seconds) for (decodes, context), seconds in decode.items() if decodes == 1)


def _head(rows: Sequence[Row], model: Llama) -> Callable[[int], float]:
    products = curve(where(rows, n=_HEAD_ROWS, k=model.hidden, **_BF16), "m", "latency_ms")
    share = model.vocabulary / model.devices / _HEAD_ROWS
    return lambda sequences: products.at(sequences) * share


def _all_reduce(path: Path, model: Llama) -> Callable[[int], float]:
    if model.devices == 1:
        return lambda _tokens: 0.0
    rows = where(read_rows(path), num_gpus=model.devices, backend="vllm_graph")
    elements = curve(rows, "message_size", "latency_ms")
    return lambda tokens: elements.at(tokens * model.hidden)
