"""Figure 4: P95 TTFT and P95 TBT against the request rate."""

from collections.abc import Iterator, Mapping, Sequence

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Panel, Row, group_at, policies_of, rates_of
from vllm_kairos.simulate.experiments.paper_setting import OURS, PEER, PLAIN, figure_config, name_of
from vllm_kairos.simulate.experiments.sustained import crossing_rps, p95_criterion, ratio, sustained_rps
from vllm_kairos.simulate.table import Group

_TTFT_SLO_S, _TBT_SLO_S = 4.0, 0.070
_BOTH = p95_criterion(_TTFT_SLO_S, _TBT_SLO_S)
_SUSTAINED_RPS = {PLAIN: 7.0, OURS: 9.0, PEER: 7.0}
_BEST_REDUCTION = 81.0  # abstract and section 9, "up to"


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {"bursty": figure_config()}


def _rows(groups: Groups) -> Sequence[Row]:
    bursty = groups["bursty"]
    return [*_sustained(bursty), *_reductions(bursty), *_latencies(bursty), *_gaps(bursty)]


def _sustained(groups: Sequence[Group]) -> Iterator[Row]:
    remark = f"highest rate run with {_BOTH.name}"
    for policy in policies_of(groups):
        best = sustained_rps(groups, policy, _BOTH)
        expected = _SUSTAINED_RPS.get(policy)
        yield Row(quantity=f"{name_of(policy)} sustains", expected=expected, ours=best, unit="requests/s", remark=remark)
    on_grid = ratio(*(sustained_rps(groups, policy, _BOTH) for policy in (OURS, PLAIN)))
    between = ratio(*(crossing_rps(groups, policy, _BOTH) for policy in (OURS, PLAIN)))
    yield Row(quantity="Kairos over plain P/D, rates run", expected=9 / 7, ours=on_grid)
    yield Row(quantity="Kairos over plain P/D, interpolated", expected=9 / 7, ours=between, remark="between the rates run")


def _reductions(groups: Sequence[Group]) -> Iterator[Row]:
    cuts: list[tuple[float, float]] = []
    for rate in rates_of(groups):
        before_s, after_s = (_ttft_s(groups, policy, rate) for policy in (PLAIN, OURS))
        if before_s and after_s is not None:
            cuts.append((100 * (1 - after_s / before_s), rate))
            yield Row(quantity=f"P95 TTFT reduction at {rate:g} requests/s", expected=None, ours=cuts[-1][0], unit="%")
    if cuts:
        best, rate = max(cuts)
        remark = f"at {rate:g} requests/s; the paper does not say at which"
        yield Row(quantity="best P95 TTFT reduction", expected=_BEST_REDUCTION, ours=best, unit="%", remark=remark)


def _latencies(groups: Sequence[Group]) -> Iterator[Row]:
    for rate in rates_of(groups):
        for policy in policies_of(groups):
            ours = _ttft_s(groups, policy, rate)
            yield Row(quantity=f"{name_of(policy)}: P95 TTFT at {rate:g} requests/s", expected=None, ours=ours, unit="s")


def _gaps(groups: Sequence[Group]) -> Iterator[Row]:
    for rate in rates_of(groups):
        for policy in policies_of(groups):
            ours = _tbt_ms(groups, policy, rate)
            yield Row(quantity=f"{name_of(policy)}: P95 TBT at {rate:g} requests/s", expected=None, ours=ours, unit="ms")
    own = [group for group in groups if group.policy == OURS]
    if own:
        late = max(group.middle(lambda one: 100 * one.tbt_s.violation_share) or 0.0 for group in own)
        remark = "the paper: none by construction"
        yield Row(quantity="Kairos: most TBT violations at any rate", expected=0.0, ours=late, unit="%", remark=remark)
    more = [_added_ms(groups, rate) for rate in rates_of(groups)]
    known = [value for value in more if value is not None]
    if known:
        remark = "the paper: 5 to 10 ms"
        yield Row(quantity="Kairos: most it adds to P95 TBT", expected=10.0, ours=max(known), unit="ms", remark=remark)


def _added_ms(groups: Sequence[Group], rate: float) -> float | None:
    plain_ms, ours_ms = (_tbt_ms(groups, policy, rate) for policy in (PLAIN, OURS))
    return None if plain_ms is None or ours_ms is None else ours_ms - plain_ms


def _ttft_s(groups: Sequence[Group], policy: str, rate: float) -> float | None:
    group = group_at(groups, policy, rate)
    return group.middle(lambda one: one.ttft_s.p95) if group else None


def _tbt_ms(groups: Sequence[Group], policy: str, rate: float) -> float | None:
    group = group_at(groups, policy, rate)
    return group.middle(lambda one: None if one.tbt_s.p95 is None else one.tbt_s.p95 * 1e3) if group else None


EXPERIMENT = Experiment(
    name="paper-fig4",
    summary="P95 TTFT and P95 TBT on 2P2D as the Bursty load rises",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="the paper's Figure 4 and section 6.2",
    panels=(
        Panel("P95 TTFT, s", lambda one: one.ttft_s.p95, limit=_TTFT_SLO_S),
        Panel("P95 TBT, ms", lambda one: one.tbt_s.p95, factor=1e3, limit=_TBT_SLO_S * 1e3),
    ),
)
