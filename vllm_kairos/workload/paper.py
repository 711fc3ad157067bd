"""The five workloads of the deflection paper, from the numbers it prints (section 3 and Table 1)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from random import Random

from vllm_kairos.workload.quantiles import Bucket, LengthDistribution

CONTEXT_TOKENS = 32768
"""The model's window, that the paper's token counts are normalised to."""

BURSTY_SCV = 4.0
"""The paper does not print its Gamma's burstiness. 4 (a coefficient of variation of 2) is what ServeGen's m-large
clients together show over an hour (3.9)."""

_LOW, _HIGH, _ALL = (0.0, 0.25), (0.9, 1.0), (0.0, 1.0)

# P25, median and P90 are printed. The middle of each bucket follows from Table 1: the medians of the two workloads
# that draw from it, as their geometric mean. Nothing is known beyond; see LengthDistribution for the tails.
_PROMPTS = {0.125: sqrt(842 * 998), 0.25: 2071, 0.5: 3569, 0.9: 10336, 0.95: sqrt(14013 * 13968)}
_OUTPUTS = {0.125: sqrt(15 * 9), 0.25: 21, 0.5: 50, 0.9: 163, 0.95: sqrt(191 * 198)}


@dataclass(frozen=True)
class PaperWorkload:
    """One row of Table 1, and what we chose where the paper is silent."""

    name: str
    prompt_ranks: tuple[float, float]
    output_ranks: tuple[float, float]
    prompt_p50: int
    output_p50: int
    rate_rps: float
    pd_ratio_p50: float
    scv: float = 1.0
    correlation: float = 0.3
    """Of the normal deviates of a request's two ranks; chosen so that the median prompt-to-output ratio comes near."""

    @cached_property
    def prompts(self) -> Bucket:
        """Prompt lengths."""
        return _bucket(_PROMPTS, self.prompt_ranks, self.prompt_p50)

    @cached_property
    def outputs(self) -> Bucket:
        """Output lengths."""
        return _bucket(_OUTPUTS, self.output_ranks, self.output_p50)

    def pick(self, rng: Random) -> "PaperWorkload":
        """All its requests are of one kind."""
        return self

    def targets(self) -> Mapping[str, float]:
        """The numbers the paper prints for this workload, by what they measure."""
        table = {
            "prompt_tokens p50": self.prompt_p50,
            "output_tokens p50": self.output_p50,
            "prompt-to-output ratio p50": self.pd_ratio_p50,
            "rate_rps": self.rate_rps,
        }
        return table | (_SECTION_3 if self.prompt_ranks == _ALL else {})


_SECTION_3 = {"prompt_tokens p25": 2071, "prompt_tokens p90": 10336, "output_tokens p25": 21, "output_tokens p90": 163}


def _bucket(quantiles: Mapping[float, float], ranks: tuple[float, float], median: int) -> Bucket:
    distribution = LengthDistribution.through(quantiles)
    return Bucket.with_median(distribution, low_rank=ranks[0], high_rank=ranks[1], median=median)


PAPER_WORKLOADS = {
    row.name: row
    for row in (
        PaperWorkload("LPLD", _LOW, _LOW, 842, 15, 22.0, 61.46),
        PaperWorkload("LPHD", _LOW, _HIGH, 998, 191, 20.0, 4.99),
        PaperWorkload("HPLD", _HIGH, _LOW, 14013, 9, 1.0, 1482.89, correlation=-0.6),
        PaperWorkload("HPHD", _HIGH, _HIGH, 13968, 198, 1.0, 66.53),
        PaperWorkload("Bursty", _ALL, _ALL, 3569, 50, 4.0, 69.67, scv=BURSTY_SCV),
    )
}
