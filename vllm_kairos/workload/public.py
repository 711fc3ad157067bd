"""Workloads with the lengths of public traces, to draw without the traces themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from vllm_kairos.workload.quantiles import Bucket, LengthDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Prompt and output lengths of one kind of request."""

    prompts: Bucket
    outputs: Bucket
    correlation: float
    """Of the normal deviates of a request's two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicWorkload:
    """Requests of one or more kinds, each with its share."""

    name: str
    parts: tuple[tuple[float, Lengths], ...]
    rate_rps: float
    scv: float = 1.0

    def pick(self, rng: Random) -> Lengths:
        """Draw the kind of one request."""
        draw = rng.random()
        for share, lengths in self.parts[:-1]:
            if draw < share:
                return lengths
            draw -= share
        return self.parts[-1][1]


def _all_of(quantiles: Mapping[float, float]) -> Bucket:
    return Bucket(distribution=LengthDistribution.through(quantiles), low_rank=0.0, high_rank=1.0, lean=1.0)


# Azure's LLM inference trace of 2023, conversations (19,366 requests, CC BY 4.0).
_CHAT = Lengths(
    prompts=_all_of({0.05: 181, 0.1: 207, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.9: 2734, 0.95: 4083, 0.99: 4142}),
    outputs=_all_of({0.05: 41, 0.1: 54, 0.25: 85, 0.5: 129, 0.75: 395, 0.9: 424, 0.95: 451, 0.99: 601}),
    correlation=0.01,
)
# Mooncake's conversation trace (12,031 requests, Apache-2.0), whose prompts come with their history.
_LONG = Lengths(
    prompts=_all_of({0.05: 901, 0.1: 964, 0.25: 2306, 0.5: 6909, 0.75: 15367, 0.9: 27367, 0.95: 39550, 0.99: 85400}),
    outputs=_all_of({0.05: 10, 0.1: 24, 0.25: 156, 0.5: 350, 0.75: 472, 0.9: 597, 0.95: 698, 0.99: 1118}),
    correlation=0.07,
)
PUBLIC_WORKLOADS: Mapping[str, PublicWorkload] = MappingProxyType(
    {
        row.name: row
        for row in (
            PublicWorkload(name="chat", parts=((1.0, _CHAT),), rate_rps=5.5),
            PublicWorkload(name="long-context", parts=((1.0, _LONG),), rate_rps=3.4),
            PublicWorkload(name="mixed", parts=((0.8, _CHAT), (0.2, _LONG)), rate_rps=5.0),
        )
    }
)
"""Rates of the first two are the traces' own. Longer prompts than the paper's window are cut to it."""
