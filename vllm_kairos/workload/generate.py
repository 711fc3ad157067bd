"""Draw one of the paper's workloads, or one with a public trace's lengths."""

from collections.abc import Mapping
from math import sqrt
from random import Random
from statistics import NormalDist

from vllm_kairos.errors import WorkloadError
from vllm_kairos.workload.arrivals import arrival_times_s
from vllm_kairos.workload.paper import CONTEXT_TOKENS, PAPER_WORKLOADS, PaperWorkload
from vllm_kairos.workload.public import PUBLIC_WORKLOADS, Lengths, PublicWorkload
from vllm_kairos.workload.request import TraceRequest, Workload

GENERATED_WORKLOADS: Mapping[str, PaperWorkload | PublicWorkload] = {**PAPER_WORKLOADS, **PUBLIC_WORKLOADS}
_NORMAL = NormalDist()
_SMALLEST_UNIFORM = 1e-12


def generate(name: str, *, requests: int, seed: int, rate_rps: float | None = None, scv: float | None = None) -> Workload:
    """`requests` requests of LPLD, LPHD, HPLD, HPHD, Bursty, chat, long-context or mixed, at its rate unless another is given.

    `scv` is the squared coefficient of variation of the gaps; None takes the workload's own (1, Poisson, and for
    Bursty `paper.BURSTY_SCV`). Equal arguments give equal workloads, and lengths depend on `name` and `seed` alone,
    so rates compare the same requests. Raises WorkloadError naming the argument, the rule and the value.
    """
    if name not in GENERATED_WORKLOADS:
        raise WorkloadError(f"workload must be one of {', '.join(GENERATED_WORKLOADS)}, got {name!r}")
    if requests < 1:
        raise WorkloadError(f"requests must be >= 1, got {requests}")
    row, lengths = GENERATED_WORKLOADS[name], Random(f"{seed}/{name}/lengths")
    arrivals_s = arrival_times_s(
        requests,
        rate_rps=row.rate_rps if rate_rps is None else rate_rps,
        scv=row.scv if scv is None else scv,
        rng=Random(f"{seed}/{name}/arrivals"),
    )
    prefix = name.lower()
    drawn = (_request(f"{prefix}-{index}", arrival_s, row.pick(lengths), lengths) for index, arrival_s in enumerate(arrivals_s))
    return Workload(name=name, requests=tuple(drawn))


def _request(request_id: str, arrival_s: float, row: PaperWorkload | Lengths, rng: Random) -> TraceRequest:
    prompt_rank, output_rank = _correlated_uniforms(row.correlation, rng)
    output_tokens = row.outputs.tokens(output_rank, CONTEXT_TOKENS // 2)
    return TraceRequest(
        request_id=request_id,
        arrival_s=arrival_s,
        prompt_tokens=row.prompts.tokens(prompt_rank, CONTEXT_TOKENS - output_tokens),
        output_tokens=output_tokens,
    )


def _correlated_uniforms(correlation: float, rng: Random) -> tuple[float, float]:
    first, noise = rng.gauss(0.0, 1.0), rng.gauss(0.0, 1.0)
    second = correlation * first + sqrt(1 - correlation**2) * noise
    return _inside(_NORMAL.cdf(first)), _inside(_NORMAL.cdf(second))


def _inside(uniform: float) -> float:
    """A rank that has a finite deviate."""
    return min(max(uniform, _SMALLEST_UNIFORM), 1 - _SMALLEST_UNIFORM)
