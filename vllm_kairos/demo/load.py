"""The demo's load: real lengths, scaled to a small model, arriving in seeded bursts."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from vllm_kairos.errors import ConfigError

LENGTHS_FILE = "azure_conv_2023_lengths.csv"
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1_000, 40_000
"""Ordinary text tokens of the small model, clear of its special ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What to send. The inter-arrival times are gamma distributed with squared coefficient of variation `scv`."""

    duration_s: float = 75.0
    rate_per_s: float = 1.6
    scv: float = 8.0
    prompt_scale: float = 0.5
    output_scale: float = 0.15
    min_prompt_tokens: int = 32
    max_prompt_tokens: int = 2048
    max_output_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("duration_s", "rate_per_s", "scv", "prompt_scale", "output_scale"):
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


def _arrivals(settings: LoadSettings) -> list[float]:
    source = random.Random(f"{settings.seed} arrivals")
    shape = 1 / settings.scv
    scale_s = settings.scv / settings.rate_per_s
    times_s = [0.0]
    while times_s[-1] < settings.duration_s:
        times_s.append(times_s[-1] + source.gammavariate(shape, scale_s))
    return times_s[:-1]


def _lengths(settings: LoadSettings, count: int) -> list[tuple[int, int]]:
    source = random.Random(f"{settings.seed} lengths")
    rows = list(csv.DictReader(files("vllm_kairos.demo").joinpath("data", LENGTHS_FILE).read_text().splitlines()))
    return [_scaled(settings, source.choice(rows)) for _ in range(count)]


def _scaled(settings: LoadSettings, row: dict[str, str]) -> tuple[int, int]:
    prompt = round(int(row["prompt_tokens"]) * settings.prompt_scale)
    output = round(int(row["output_tokens"]) * settings.output_scale)
    return (
        min(max(prompt, settings.min_prompt_tokens), settings.max_prompt_tokens),
        min(max(output, 2), settings.max_output_tokens),
    )


def _prompt(source: random.Random, tokens: int) -> tuple[int, ...]:
    return tuple(source.randrange(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(tokens))
