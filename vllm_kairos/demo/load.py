"""The demo's load: real lengths, scaled to a small model, arriving in seeded bursts."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from vllm_kairos.core.latency import StepLatencyModel
from vllm_kairos.core.shapes import BatchShape
from vllm_kairos.errors import ConfigError

LENGTHS_FILE = "azure_code_2023_lengths.csv"
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1_000, 40_000
"""Ordinary text tokens of the small model, clear of its special ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What to send: bursts of Poisson arrivals at `rate_per_s`, `burst_s` long, with pauses between them."""

    rate_per_s: float
    duration_s: float = 75.0
    burst_s: float = 15.0
    pause_s: float = 15.0
    prompt_scale: float = 0.3
    output_scale: float = 0.5
    min_prompt_tokens: int = 32
    max_prompt_tokens: int = 2048
    max_output_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate_per_s", "duration_s", "burst_s", "pause_s", "prompt_scale", "output_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request of the load; it is sent at `at_s` whether or not earlier ones are answered."""

    at_s: float
    prompt: tuple[int, ...]
    output_tokens: int


def make_load(settings: LoadSettings, *, run: int) -> tuple[PlannedRequest, ...]:
    """Arrivals and lengths follow from the seed alone; `run` varies the prompts' tokens.

    So that two runs are the same load, and no prefix cache has seen a prompt before.
    """
    arrivals = _arrivals(settings)
    lengths = _lengths(settings, len(arrivals))
    tokens = random.Random(f"{settings.seed} {run}")
    return tuple(
        PlannedRequest(at_s=at_s, prompt=_prompt(tokens, prompt_tokens), output_tokens=output_tokens)
        for at_s, (prompt_tokens, output_tokens) in zip(arrivals, lengths, strict=True)
    )


def one_by_one(load: Sequence[PlannedRequest], count: int) -> tuple[PlannedRequest, ...]:
    """A sample of the load's requests, evenly over its prompt lengths, to be sent without overlap."""
    ordered = sorted(load, key=lambda request: len(request.prompt))
    step = max(1, len(ordered) // count)
    return tuple(ordered[step // 2 :: step][:count])


def mean_prompt_s(settings: LoadSettings, model: StepLatencyModel) -> float:
    """Seconds that a prefill server of this latency model takes for one of the load's prompts, on average."""
    prompts = [_scaled(settings, row)[0] for row in _rows()]
    return sum(model.step_s(_alone(tokens)) for tokens in prompts) / len(prompts)


def _alone(prompt_tokens: int) -> BatchShape:
    return BatchShape(running_decodes=0, kv_tokens=0, prefill_tokens=prompt_tokens, done_tokens=0)


def _arrivals(settings: LoadSettings) -> list[float]:
    """Poisson arrivals on the time line of the bursts alone, with the pauses put between them afterwards."""
    source = random.Random(f"{settings.seed} arrivals")
    period_s = settings.burst_s + settings.pause_s
    times_s: list[float] = []
    busy_s = 0.0
    while True:
        at_s = busy_s // settings.burst_s * period_s + busy_s % settings.burst_s
        if at_s >= settings.duration_s:
            return times_s
        times_s.append(at_s)
        busy_s += source.expovariate(settings.rate_per_s)


def _lengths(settings: LoadSettings, count: int) -> list[tuple[int, int]]:
    source = random.Random(f"{settings.seed} lengths")
    rows = _rows()
    return [_scaled(settings, source.choice(rows)) for _ in range(count)]


def _rows() -> list[dict[str, str]]:
    return list(csv.DictReader(files("vllm_kairos.demo").joinpath("data", LENGTHS_FILE).read_text().splitlines()))


def _scaled(settings: LoadSettings, row: dict[str, str]) -> tuple[int, int]:
    prompt = round(int(row["prompt_tokens"]) * settings.prompt_scale)
    output = round(int(row["output_tokens"]) * settings.output_scale)
    return (
        min(max(prompt, settings.min_prompt_tokens), settings.max_prompt_tokens),
        min(max(output, 2), settings.max_output_tokens),
    )


def _prompt(source: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(source.randrange(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(tokens))
