"""Prefill sized by deadlines against every fixed chunk on one aggregated server, from low load to overload."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Panel, Row, group_at, policies_of, rates_of
from vllm_kairos.simulate.experiments.sustained import attainment_criterion, crossing_rps, ratio, sustained_rps
from vllm_kairos.simulate.sections import ClusterConfig, GovernorConfig, ObjectivesConfig, SweepConfig, WorkloadConfig
from vllm_kairos.simulate.table import Group

OURS = "aggregated"
FIXED = tuple(f"aggregated:{chunk}" for chunk in (64, 128, 256, 512, 1024, 2048, 4096, 8192))
"""Stock vLLM by --max-num-batched-tokens, and with --max-num-seqs 256 or what that allows."""
_TTFT_MS = 4000.0
_ATTAINED = attainment_criterion(0.9)


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


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {_label(setting, load): _config(setting, load) for setting in _SETTINGS for load in _LOADS}


def _label(setting: _Setting, load: str) -> str:
    return f"{load}-{setting.tpot_ms:g}ms"


def _config(setting: _Setting, load: str) -> SimulateConfig:
    return SimulateConfig(
        cluster=ClusterConfig(nodes="1B", profile=setting.profile, async_scheduling=True),
        governor=GovernorConfig(mode="guarded"),
        objectives=ObjectivesConfig(ttft_slo_ms=_TTFT_MS, tpot_slo_ms=setting.tpot_ms),
        workload=WorkloadConfig(generate=_LOADS[load].generate, requests=_LOADS[load].requests),
        sweep=SweepConfig(policies=(*FIXED, OURS), rates=setting.rates_rps[load], seeds=(0,)),
    )


def _rows(groups: Groups) -> Sequence[Row]:
    places = [(setting, load, groups[_label(setting, load)]) for setting in _SETTINGS for load in _LOADS]
    rows = [row for setting, load, each in places for row in _load_rows(setting, load, each)]
    losses = [loss for setting, load, each in places for loss in _losses(_label(setting, load), each)]
    kept_up = [loss for loss in losses if loss.attained >= 1 - _ATTAINED.limit]
    return [*rows, *_most_lost("at any load", losses), *_most_lost(f"where a fixed chunk has {_ATTAINED.name}", kept_up)]


def goodput_rps(group: Group) -> float:
    """Requests per second that attain both objectives: those that arrive times the share, the median over the seeds."""
    return (group.rate_rps or 0.0) * _attained(group)


def _attained(group: Group) -> float:
    return group.middle(lambda one: one.slo_attainment) or 0.0


def _load_rows(setting: _Setting, load: str, groups: Sequence[Group]) -> Iterator[Row]:
    ours, fixed = _of(groups, ours=True), _of(groups, ours=False)
    if not ours or not fixed:
        return
    label, best, most = _label(setting, load), max(fixed, key=goodput_rps), max(ours, key=goodput_rps)
    remark = f"{_chunk(best)} tokens at {best.rate_rps:g} requests/s"
    yield Row(quantity=f"{label}: best fixed chunk's goodput", expected=None, ours=goodput_rps(best), unit="1/s", remark=remark)
    remark = f"at {most.rate_rps:g} requests/s"
    yield Row(quantity=f"{label}: governor's goodput", expected=None, ours=goodput_rps(most), unit="1/s", remark=remark)
    over = ratio(goodput_rps(most), goodput_rps(best))
    gain = setting.gains.get(load)
    yield Row(quantity=f"{label}: governor over best fixed chunk", expected=gain, ours=over, remark="each at its best rate")
    loss = min(_losses(label, groups), default=None)
    if loss is not None:
        remark = f"at {loss.rate_rps:g} requests/s, the rate where it is most"
        yield Row(quantity=f"{label}: at one rate", expected=gain, ours=1 - loss.share, remark=remark)
    rate, chunk = max((_carried(groups, policy), policy) for policy in policies_of(fixed))
    remark = f"{_ATTAINED.name}, {chunk.partition(':')[2]} tokens"
    yield Row(quantity=f"{label}: best fixed chunk carries", expected=None, ours=rate, unit="1/s", remark=remark)
    carried = _carried(groups, OURS)
    yield Row(quantity=f"{label}: governor carries", expected=None, ours=carried, unit="1/s", remark=_ATTAINED.name)


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


def _losses(label: str, groups: Sequence[Group]) -> Iterator[_Loss]:
    for rate in rates_of(groups):
        ours = group_at(groups, OURS, rate)
        fixed = [group for group in _of(groups, ours=False) if group.rate_rps == rate]
        best = max(fixed, key=goodput_rps, default=None)
        if ours is not None and best is not None and goodput_rps(best):
            place = f"{label} at {rate:g} requests/s, beside {_chunk(best)} tokens"
            yield _Loss(1 - goodput_rps(ours) / goodput_rps(best), rate, place, _attained(best))


def _most_lost(where: str, losses: Sequence[_Loss]) -> Iterator[Row]:
    if losses:
        most = max(losses)
        lost = 100 * most.share
        yield Row(quantity=f"governor's largest loss {where}", expected=None, ours=lost, unit="%", remark=most.place)


EXPERIMENT = Experiment(
    name="governor",
    summary="one aggregated server with prefill sized by deadlines, against every fixed chunk, from low load to overload",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="SLOWeave's abstract",
    panels=(Panel("attained", lambda one: one.slo_attainment),),
)
