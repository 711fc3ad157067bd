"""Prefill sized by deadlines against every fixed chunk on one aggregated server, from low load to overload."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import (
    Experiment,
    Groups,
    Panel,
    Row,
    group_at,
    policies_of,
    rates_of,
    spread_of,
)
from vllm_kairos.simulate.experiments.sustained import attainment_criterion, crossing_rps, ratio, sustained_rps
from vllm_kairos.simulate.sections import ClusterConfig, GovernorConfig, ObjectivesConfig, SweepConfig, WorkloadConfig
from vllm_kairos.simulate.table import Group

OURS = "aggregated"
FIXED = tuple(f"aggregated:{chunk}" for chunk in (64, 128, 256, 512, 1024, 2048, 4096, 8192))
"""Stock vLLM by --max-num-batched-tokens, and with --max-num-seqs 256 or what that allows."""
_TTFT_MS = 4000.0
_ATTAINED = attainment_criterion(0.9)
_SEEDS = (0, 1, 2)
_LOST = 0.02  # a share of goodput, from which on a loss is named


class _Setting(NamedTuple):
    """A TPOT objective and a server that can meet it; for each load its request rates, and the paper's gain."""

    tpot_ms: float
    profile: str
    rates_rps: Mapping[str, tuple[float, ...]]
    gains: Mapping[str, float]


class _Load(NamedTuple):
    """A drawn workload, of so many requests."""

    generate: str
    requests: int


_LOADS = {
    "chat": _Load("chat", 600),
    "mixed": _Load("mixed", 300),
    "long-context": _Load("long-context", 150),
    "bursty": _Load("Bursty", 300),
}
_SETTINGS = (
    _Setting(
        25.0,
        "h100-llama3.1-8b",
        {
            "chat": (20.0, 25.0, 30.0, 35.0),
            "mixed": (4.0, 6.0, 7.0, 9.0),
            "long-context": (1.25, 1.5, 1.75, 2.0),
            "bursty": (3.0, 5.0, 6.0, 7.0),
        },
        {"mixed": 1.39, "long-context": 1.38},
    ),
    _Setting(
        10.0,
        "h200-llama3.1-8b-fp8",
        {
            "chat": (9.0, 12.0, 15.0, 18.0),
            "mixed": (2.0, 3.0, 4.0, 5.0),
            "long-context": (0.3, 0.6, 0.9, 1.2),
            "bursty": (2.0, 3.0, 4.0, 5.0),
        },
        {"mixed": 3.3, "long-context": 2.4},
    ),
)


def sweeps_of(policies: Sequence[str]) -> Mapping[str, SimulateConfig]:
    """A sweep for each load and TPOT objective, at its rates."""
    return {_label(setting, load): _config(setting, load, policies) for setting in _SETTINGS for load in _LOADS}


def _label(setting: _Setting, load: str) -> str:
    return f"{load}-{setting.tpot_ms:g}ms"


def _config(setting: _Setting, load: str, policies: Sequence[str]) -> SimulateConfig:
    return SimulateConfig(
        cluster=ClusterConfig(nodes="1B", profile=setting.profile, async_scheduling=True),
        governor=GovernorConfig(mode="guarded", ttft_slo_ms=_TTFT_MS),
        objectives=ObjectivesConfig(ttft_slo_ms=_TTFT_MS, tpot_slo_ms=setting.tpot_ms),
        workload=WorkloadConfig(generate=_LOADS[load].generate, requests=_LOADS[load].requests),
        sweep=SweepConfig(policies=tuple(policies), rates=setting.rates_rps[load], seeds=_SEEDS),
    )


def _rows(groups: Groups) -> Sequence[Row]:
    places = [(setting, load, groups[_label(setting, load)]) for setting in _SETTINGS for load in _LOADS]
    rows = [row for setting, load, each in places for row in _load_rows(setting, load, each)]
    losses = [loss for setting, load, each in places for loss in _losses(_label(setting, load), each)]
    kept_up = [loss for loss in losses if loss.attained >= 1 - _ATTAINED.limit]
    return [
        *rows,
        *_most_lost("at any load", losses),
        *_most_lost(f"where a fixed chunk has {_ATTAINED.name}", kept_up),
        *(_named(loss) for loss in losses if loss.share > _LOST),
    ]


def goodput_rps(group: Group) -> float:
    """Requests per second that attain both objectives: those that arrive times the share, the median over the seeds."""
    return (group.rate_rps or 0.0) * attained(group)


def attained(group: Group) -> float:
    """The share of requests that attain both objectives, the median over the seeds."""
    return median(attained_each(group))


def attained_each(group: Group) -> list[float]:
    """That share for each seed."""
    return [one.slo_attainment for one in group.figures]


def _goodputs_rps(group: Group) -> list[float]:
    return [(group.rate_rps or 0.0) * share for share in attained_each(group)]


def _over_each(ours: Group, fixed: Group) -> tuple[float, float] | None:
    """The spread over the seeds, the two on the same requests."""
    pairs = list(zip(_goodputs_rps(ours), _goodputs_rps(fixed), strict=True))
    return spread_of([one / other for one, other in pairs]) if all(other for _, other in pairs) else None


def _load_rows(setting: _Setting, load: str, groups: Sequence[Group]) -> Iterator[Row]:
    ours, fixed = _of(groups, ours=True), _of(groups, ours=False)
    if not ours or not fixed:
        return
    label, best, most = _label(setting, load), max(fixed, key=goodput_rps), max(ours, key=goodput_rps)
    place = f"{_chunk(best)} tokens at {best.rate_rps:g} requests/s"
    yield _goodput_row(f"{label}: best fixed chunk's goodput", best, place)
    yield _goodput_row(f"{label}: governor's goodput", most, f"at {most.rate_rps:g} requests/s")
    over = ratio(goodput_rps(most), goodput_rps(best))
    gain, spread = setting.gains.get(load), _over_each(most, best)
    about = f"{label}: governor over best fixed chunk"
    yield Row(quantity=about, expected=gain, ours=over, remark="each at its best rate", spread=spread)
    loss = min(_losses(label, groups), key=lambda one: one.share, default=None)
    if loss is not None:
        remark = f"at {loss.rate_rps:g} requests/s, the rate where it is most"
        yield Row(quantity=f"{label}: at one rate", expected=gain, ours=1 - loss.share, remark=remark, spread=loss.over_each)
    rate, chunk = max((_carried(groups, policy), policy) for policy in policies_of(fixed))
    remark = f"{_ATTAINED.name}, {chunk.partition(':')[2]} tokens"
    yield Row(quantity=f"{label}: best fixed chunk carries", expected=None, ours=rate, unit="1/s", remark=remark)
    carried = _carried(groups, OURS)
    yield Row(quantity=f"{label}: governor carries", expected=None, ours=carried, unit="1/s", remark=_ATTAINED.name)


def _goodput_row(quantity: str, group: Group, remark: str) -> Row:
    spread = spread_of(_goodputs_rps(group))
    return Row(quantity=quantity, expected=None, ours=goodput_rps(group), unit="1/s", remark=remark, spread=spread)


def _of(groups: Sequence[Group], *, ours: bool) -> list[Group]:
    return [group for group in groups if (group.policy == OURS) is ours and group.rate_rps is not None]


def _chunk(group: Group) -> str:
    return group.policy.partition(":")[2]


def _carried(groups: Sequence[Group], policy: str) -> float:
    """Up to which rate it attains most; between two rates of the grid on the line, the last one where it never stops to."""
    crossing = crossing_rps(groups, policy, _ATTAINED)
    return crossing if crossing is not None else sustained_rps(groups, policy, _ATTAINED) or 0.0


class _Loss(NamedTuple):
    """By what share the governor's goodput falls short of the best fixed chunk's at the same rate, which attained so much."""

    share: float
    rate_rps: float
    place: str
    attained: float
    ours_attained: float
    over_each: tuple[float, float] | None  # the governor's goodput over the other's, least and most of the seeds


def _losses(label: str, groups: Sequence[Group]) -> Iterator[_Loss]:
    for rate in rates_of(groups):
        ours = group_at(groups, OURS, rate)
        fixed = [group for group in _of(groups, ours=False) if group.rate_rps == rate]
        best = max(fixed, key=goodput_rps, default=None)
        if ours is not None and best is not None and goodput_rps(best):
            place = f"{label} at {rate:g} requests/s, beside {_chunk(best)} tokens"
            share = 1 - goodput_rps(ours) / goodput_rps(best)
            yield _Loss(share, rate, place, attained(best), attained(ours), _over_each(ours, best))


def _most_lost(where: str, losses: Sequence[_Loss]) -> Iterator[Row]:
    if losses:
        most = max(losses, key=lambda loss: loss.share)
        lost = 100 * most.share
        yield Row(quantity=f"governor's largest loss {where}", expected=None, ours=lost, unit="%", remark=most.place)


def _named(loss: _Loss) -> Row:
    remark = f"{loss.ours_attained:.2f} attained against {loss.attained:.2f}"
    return Row(quantity=f"governor loses, {loss.place}", expected=None, ours=100 * loss.share, unit="%", remark=remark)


EXPERIMENT = Experiment(
    name="governor",
    summary="one aggregated server with prefill sized by deadlines, against every fixed chunk, from low load to overload",
    sweeps=lambda: sweeps_of((*FIXED, OURS)),
    rows=_rows,
    expected_from="SLOWeave's abstract",
    panels=(Panel("attained", lambda one: one.slo_attainment),),
)
