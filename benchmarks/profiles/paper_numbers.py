"""The numbers that the paper prints about step latency, each as a prediction to compare with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from math import exp, log
from statistics import NormalDist

from vllm_kairos.core.linear import LinearStepModel
from vllm_kairos.core.shapes import BatchShape

KV_BYTES_PER_TOKEN = (512 + 64) * 2 * 27
"""DeepSeek-V2-Lite: the latent of 512 and the rotary key of 64, in two bytes, in 27 layers."""

BUDGET_TOKENS = 2048
"""Of a prefill step: vLLM's default on an A100, which the paper does not change."""

_BATCHES = (4, 8, 16, 32)
_CONTEXTS = {"LPLD": 842, "LPHD": 998, "HPLD": 14013, "HPHD": 13968, "Bursty": 3569}
_LOW = ("LPLD", "LPHD")
_HIGH = ("HPLD", "HPHD", "Bursty")
_RATES_PER_NODE = {"LPLD": 11.0, "LPHD": 10.0, "HPLD": 0.5, "HPHD": 0.5, "Bursty": 2.0}
_COMPLETIONS = {"LPLD": 15, "LPHD": 191, "HPLD": 9, "HPHD": 198, "Bursty": 50}
_TBT_S = 0.051
_EXECUTION_MS = {"LPLD": 191.4, "LPHD": 177.0, "HPLD": 1340.2, "HPHD": 1222.8, "Bursty": 1070.1}
_TRANSFER_MS = {"LPLD": 4205.4, "LPHD": 1428.9, "HPLD": 1723.4, "HPHD": 3584.6, "Bursty": 2175.6}
_CONTEXT_WINDOW = 32768


class Sense(StrEnum):
    """How a printed number limits a prediction."""

    EQUAL = "equal"
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclass(frozen=True, kw_only=True)
class Printed:
    """One printed number."""

    text: str
    target: float
    unit: str
    tolerance: float
    """In `unit`: how far off counts as one."""
    predict: Callable[[LinearStepModel], float]
    source: str
    sense: Sense = Sense.EQUAL

    @property
    def quantity(self) -> str:
        """What was printed, beginning with its sense where it is a bound."""
        return self.text if self.sense is Sense.EQUAL else f"{self.sense}: {self.text}"

    def residual(self, predicted: float) -> float:
        """Predicted less target; 0 where a bound holds."""
        missed = predicted - self.target
        if self.sense is Sense.AT_MOST:
            return max(0.0, missed)
        return min(0.0, missed) if self.sense is Sense.AT_LEAST else missed


def printed() -> list[Printed]:
    """Return every number that the profile is calibrated to."""
    return [*_decode_steps(), *_increases(), _added_tbt(), *_executions(), _capacity(), _deflectable()]


def bandwidths_note() -> str:
    """Say what bandwidth Table 3's transfer times would mean for a prompt of each stratum's P95 length."""
    rates = {name: p95_prompt_tokens(name) * KV_BYTES_PER_TOKEN / seconds / 1e3 for name, seconds in _TRANSFER_MS.items()}
    listed = ", ".join(f"{name} {rate:.0f} MB/s" for name, rate in rates.items())
    return (
        f"KV transfer: Table 3's P95 times over the KV of a P95 prompt come to {listed}, far below the testbed's "
        "InfiniBand; the times hold waiting for the decode node as well, so they are no link speed."
    )


def p95_prompt_tokens(name: str) -> float:
    """The P95 prompt of a stratum: low is below the trace's P25, high above its P90, Bursty all of it."""
    share = 0.95 * 0.25 if name in _LOW else 0.95 if name == "Bursty" else 0.90 + 0.95 * 0.10
    return quantile_tokens(share)


def quantile_tokens(share: float) -> float:
    """Prompt tokens of the production trace: lognormal between its printed quantiles and beyond the last.

    The median of all prompts below P25 is the trace's P12.5, that of all above P90 its P95.
    """
    known = [(0.125, (842 + 998) / 2), (0.25, 2071.0), (0.50, 3569.0), (0.90, 10336.0), (0.95, (14013 + 13968) / 2)]
    index = next((i for i, (upper, _) in enumerate(known[1:-1]) if share <= upper), len(known) - 2)
    (left, low), (right, high) = known[index], known[index + 1]
    z = NormalDist().inv_cdf
    part = (z(share) - z(left)) / (z(right) - z(left))
    return min(_CONTEXT_WINDOW, exp(log(low) + part * (log(high) - log(low))))


def prompt_s(model: LinearStepModel, tokens: float) -> float:
    """Execution of one prompt alone, in steps of the token budget."""
    whole, done, seconds = round(tokens), 0, 0.0
    while done < whole:
        chunk = min(BUDGET_TOKENS, whole - done)
        seconds += model.step_s(BatchShape(running_decodes=0, kv_tokens=done, prefill_tokens=chunk, done_tokens=done))
        done += chunk
    return seconds


def _decode_steps() -> Iterable[Printed]:
    for name, target in (("HPLD", 49.0), ("Bursty", 53.0)):
        yield _tbt(name, target, Sense.EQUAL)
    for name in ("LPLD", "LPHD", "HPHD"):
        yield _tbt(name, 49.0, Sense.AT_LEAST)
        yield _tbt(name, 53.0, Sense.AT_MOST)


def _tbt(name: str, target_ms: float, sense: Sense) -> Printed:
    decodes = max(1, round(_RATES_PER_NODE[name] * _COMPLETIONS[name] * _TBT_S))
    kv_tokens = decodes * (_CONTEXTS[name] + _COMPLETIONS[name] // 2)
    batch = BatchShape(running_decodes=decodes, kv_tokens=kv_tokens)
    return Printed(
        text=f"P50 TBT of {name}, at {decodes} decodes holding {kv_tokens} tokens",
        target=target_ms,
        unit="ms",
        tolerance=1.0,
        predict=lambda model: model.step_s(batch) * 1e3,
        source="section 3.2",
        sense=sense,
    )


def _increases() -> Iterable[Printed]:
    every = tuple(_CONTEXTS)
    for chi in (128, 256, 512):
        yield _increase(f"chi {chi}, any workload, batch and chunk up to the fifth", 30.0, Sense.AT_MOST, every, chi, 5)
    for chi in (1024, 2048):
        yield _increase(f"chi {chi}, first chunk, low-prompt workloads", 30.0, Sense.EQUAL, _LOW, chi, 1)
        yield _increase(f"chi {chi}, first chunk, Bursty and high-prompt workloads", 50.0, Sense.AT_MOST, _HIGH, chi, 1)
    headroom = "within the median headroom of"
    yield _increase(f"chi 512, first chunk, {headroom} Bursty", 17.0, Sense.AT_MOST, ("Bursty",), 512, 1)
    yield _increase(f"chi 128, fifth chunk, {headroom} Bursty", 17.0, Sense.AT_MOST, ("Bursty",), 128, 5)
    yield _increase(f"chi 1024, first chunk, {headroom} HPLD", 21.0, Sense.AT_MOST, ("HPLD",), 1024, 1)
    yield _increase("chi 1024, second chunk, Bursty", 50.0, Sense.AT_LEAST, ("Bursty",), 1024, 2)
    yield _increase("chi 2048, fifth chunk, largest of all", 250.0, Sense.EQUAL, every, 2048, 5)


def _increase(text: str, target_ms: float, sense: Sense, names: Iterable[str], chi: int, chunk: int) -> Printed:
    shapes = [(decodes, decodes * _CONTEXTS[name]) for name, decodes in product(names, _BATCHES)]

    def predict(model: LinearStepModel) -> float:
        return max(_increase_s(model, decodes, kv_tokens, chi, chunk) for decodes, kv_tokens in shapes) * 1e3

    return Printed(
        text=f"step increase at {text}",
        target=target_ms,
        unit="ms",
        tolerance=target_ms * (0.2 if sense is Sense.AT_LEAST else 0.1),  # an example is worth less than a finding
        predict=predict,
        source="section 3.2, Figure 1",
        sense=sense,
    )


def _increase_s(model: LinearStepModel, decodes: int, kv_tokens: int, chi: int, chunk: int) -> float:
    tokens = chi - decodes
    done = (chunk - 1) * tokens
    alone = BatchShape(running_decodes=decodes, kv_tokens=kv_tokens)
    mixed = BatchShape(running_decodes=decodes, kv_tokens=kv_tokens + done, prefill_tokens=tokens, done_tokens=done)
    return model.step_s(mixed) - model.step_s(alone)


def _added_tbt() -> Printed:
    """Deflection adds 5 to 10 ms to P95 TBT, so its steps take no more than that, though it picks the largest safe chi.

    With 500 of 1200 requests deflected far more than 5% of the gaps hold a chunk. chi 1024 and 2048 do not fit the
    headroom that section 3.2 gives, so that these are steps of chi 512.
    """
    decodes, tokens, done = _bursty_decodes(6.0), 512, _CONTEXTS["Bursty"] // 2
    alone = BatchShape(running_decodes=decodes, kv_tokens=decodes * _CONTEXTS["Bursty"])
    mixed = replace(alone, kv_tokens=alone.kv_tokens + done, prefill_tokens=tokens - decodes, done_tokens=done)
    return Printed(
        text=f"P95 TBT with deflection over that without: step increase at chi 512, {done} tokens into a prompt",
        target=10.0,
        unit="ms",
        tolerance=1.0,
        predict=lambda model: (model.step_s(mixed) - model.step_s(alone)) * 1e3,
        source="section 6.2, Figure 4",
        sense=Sense.AT_MOST,
    )


def _bursty_decodes(rate_rps: float) -> int:
    """Decodes that run on each of two nodes at `rate_rps`, by Little's law."""
    return max(1, round(rate_rps / 2 * _COMPLETIONS["Bursty"] * _TBT_S))


def _deflectable() -> Printed:
    """More than 500 deflections at 6 requests/s without a violation: so many prompts have a safe schedule to their end.

    298 requests are shorter than 2048 tokens (Table 4), which are that share of the trace; so it has about 1200.
    """
    requests = 298 / _share_below(2048)
    tokens = round(quantile_tokens(500 / requests))
    decodes = _bursty_decodes(6.0)
    chunk = 128 - decodes
    batch = BatchShape(
        running_decodes=decodes,
        kv_tokens=decodes * _CONTEXTS["Bursty"] + tokens - chunk,
        prefill_tokens=chunk,
        done_tokens=tokens - chunk,
    )
    return Printed(
        text=f"step at chi 128, last chunk of {tokens} tokens: the shortest 500 of {requests:.0f} are deflected at 6 RPS",
        target=70.0,
        unit="ms",
        tolerance=0.5,
        predict=lambda model: model.step_s(batch) * 1e3,
        source="section 6.4, Table 4",
        sense=Sense.AT_MOST,
    )


def _share_below(tokens: float) -> float:
    """Share of the production trace's prompts that are shorter than `tokens`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if quantile_tokens(max(middle, 1e-9)) < tokens else (low, middle)
    return low


def _executions() -> Iterable[Printed]:
    for name, target_ms in _EXECUTION_MS.items():
        yield _execution(name, target_ms)


def _execution(name: str, target_ms: float) -> Printed:
    tokens = p95_prompt_tokens(name)
    return Printed(
        text=f"P95 prefill execution of {name}, at a prompt of {tokens:.0f} tokens",
        target=target_ms,
        unit="ms",
        tolerance=target_ms / 5,
        predict=lambda model: prompt_s(model, tokens) * 1e3,
        source="Table 3",
    )


def _capacity() -> Printed:
    lengths = [quantile_tokens((index + 0.5) / 200) for index in range(200)]

    def busy(model: LinearStepModel) -> float:
        return 3.5 * sum(prompt_s(model, tokens) for tokens in lengths) / len(lengths)

    return Printed(
        text="share of time that each of 2 prefill nodes is busy on Bursty at 7 requests/s, which plain P/D sustains",
        target=1.0,
        unit="",
        tolerance=0.05,
        predict=busy,
        source="section 6.2, Figure 4",
        sense=Sense.AT_MOST,
    )
