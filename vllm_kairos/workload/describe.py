"""What a workload looks like in numbers, beside the paper's where it has some."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pvariance

from vllm_kairos.workload.paper import PAPER_WORKLOADS
from vllm_kairos.workload.request import TraceRequest, Workload

_LEAST_MEAN_GAP_S = 1e-9  # shorter: all at once
IDC_WINDOWS_S = (1.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Quantiles (linear between ranks), mean and extremes of one quantity."""

    p25: float
    p50: float
    p90: float
    p95: float
    p99: float
    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        ordered = sorted(values)
        p25, p50, p90, p95, p99 = (_quantile(ordered, rank) for rank in (0.25, 0.5, 0.9, 0.95, 0.99))
        return cls(p25=p25, p50=p50, p90=p90, p95=p95, p99=p99, mean=fmean(ordered), least=ordered[0], most=ordered[-1])


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number that the paper prints, and what the workload has."""

    quantity: str
    paper: float
    achieved: float

    @property
    def error(self) -> float:
        """How far off, relative to the paper's."""
        return self.achieved / self.paper - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A workload in numbers. Arrival statistics are None where arrivals do not span any time."""

    name: str
    requests: int
    duration_s: float
    rate_rps: float | None
    """(n - 1) / duration, of the requests that arrive by the clock."""
    scv: float | None
    """Variance of the gaps over their squared mean: 1 for Poisson."""
    idc: Mapping[float, float]
    """By window in seconds: variance over mean of the counts, 1 for Poisson; only windows that fit in the duration."""
    closed_loop_requests: int
    """Requests that wait for another one; no part of the arrival statistics."""
    prompt_tokens: Spread
    output_tokens: Spread
    pd_ratio: Spread
    """Prompt tokens over output tokens, per request."""
    prefix_reuse: float
    """Share of the prompt tokens that lie in blocks an earlier request had: the hits of a cache without limit."""
    beside_paper: tuple[Comparison, ...]
    """For a workload with the name of one of the paper's."""


def describe(workload: Workload) -> Description:
    """The workload in numbers."""
    requests = workload.requests
    arrivals_s = [request.arrival_s for request in requests if not request.after]
    rate_rps, scv = _rate_and_scv(arrivals_s)
    prompts = Spread.of([request.prompt_tokens for request in requests])
    outputs = Spread.of([request.output_tokens for request in requests])
    ratios = Spread.of([request.prompt_tokens / request.output_tokens for request in requests])
    return Description(
        name=workload.name,
        requests=len(requests),
        duration_s=workload.duration_s,
        rate_rps=rate_rps,
        scv=scv,
        idc=_idc(arrivals_s),
        closed_loop_requests=len(requests) - len(arrivals_s),
        prompt_tokens=prompts,
        output_tokens=outputs,
        pd_ratio=ratios,
        prefix_reuse=_prefix_reuse(requests),
        beside_paper=_beside_paper(workload.name, prompts, outputs, ratios, rate_rps),
    )


def _quantile(ordered: Sequence[float], rank: float) -> float:
    place = rank * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _rate_and_scv(arrivals_s: Sequence[float]) -> tuple[float | None, float | None]:
    gaps = [later - earlier for earlier, later in pairwise(arrivals_s)]
    mean_s = fmean(gaps) if gaps else 0.0
    if mean_s < _LEAST_MEAN_GAP_S:
        return None, None
    return 1 / mean_s, pvariance(gaps) / mean_s**2


def _idc(arrivals_s: Sequence[float]) -> dict[float, float]:
    """Over the whole windows from the first arrival on."""
    idc = {}
    for window_s in IDC_WINDOWS_S:
        windows = int((arrivals_s[-1] - arrivals_s[0]) // window_s)
        if windows >= 2:
            counted = Counter(int((arrival_s - arrivals_s[0]) // window_s) for arrival_s in arrivals_s)
            counts = [counted[window] for window in range(windows)]
            idc[window_s] = pvariance(counts) / fmean(counts)
    return idc


def _prefix_reuse(requests: Sequence[TraceRequest]) -> float:
    seen: set[int] = set()
    reused_tokens = 0
    for request in requests:
        hits = next((at for at, block in enumerate(request.block_hashes) if block not in seen), len(request.block_hashes))
        reused_tokens += min(hits * request.block_tokens, request.prompt_tokens)
        seen.update(request.block_hashes)
    return reused_tokens / sum(request.prompt_tokens for request in requests)


def _beside_paper(
    name: str, prompts: Spread, outputs: Spread, ratios: Spread, rate_rps: float | None
) -> tuple[Comparison, ...]:
    if name not in PAPER_WORKLOADS:
        return ()
    achieved = {"prompt-to-output ratio p50": ratios.p50} | ({"rate_rps": rate_rps} if rate_rps else {})
    for quantity, spread in (("prompt_tokens", prompts), ("output_tokens", outputs)):
        achieved |= {f"{quantity} p25": spread.p25, f"{quantity} p50": spread.p50, f"{quantity} p90": spread.p90}
    targets = PAPER_WORKLOADS[name].targets()
    return tuple(
        Comparison(quantity, target, achieved[quantity]) for quantity, target in targets.items() if quantity in achieved
    )
