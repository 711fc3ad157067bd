"""Leases against one deflection per node and against static P/D, on public traces from low load to overload.

Set KAIROS_TRACES to the folder that holds Azure's 2023 traces and Mooncake's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from typing import NamedTuple

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row, group_at, rates_of
from vllm_kairos.simulate.experiments.public_traces import public_trace
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.sections import ClusterConfig, SweepConfig, WorkloadConfig
from vllm_kairos.simulate.table import Group

_STATIC, _ONE, _OURS = "never", "kairos", "crossflow"
_OVERLOADED_S = 4.0  # the TTFT objective: a mean beyond it says that static P/D does not keep up


class _Trace(NamedTuple):
    """A trace with the load for each prefill node, so that clusters of every size have the same."""

    file: str
    requests: int
    rates_rps: tuple[float, ...]


_TRACES = {
    "azure-conv": _Trace("azure_2023/AzureLLMInferenceTrace_conv.csv", 1500, (4.0, 8.0, 12.0, 16.0, 20.0)),
    "azure-code": _Trace("azure_2023/AzureLLMInferenceTrace_code.csv", 750, (1.0, 2.0, 4.0, 6.0, 8.0)),
    "mooncake": _Trace("mooncake/conversation_trace.jsonl.gz", 300, (0.15, 0.3, 0.45, 0.6, 0.8)),
}
_MOST_PAIRS = 10  # larger clusters share the requests of so many: the traces are no longer
_SIZES = {4: (0, 1, 2, 3, 4), 16: (1, 3, 4)}  # nodes, half of them of each role, and which rates


def sweeps_of(sizes: Mapping[int, Sequence[int]]) -> Mapping[str, SimulateConfig]:
    """A sweep for each trace on as many nodes as `sizes` name, at the rates that it picks."""
    return {
        f"{name}-{nodes}": _config(trace, nodes // 2, rates)
        for nodes, rates in sizes.items()
        for name, trace in _TRACES.items()
    }


def _config(trace: _Trace, pairs: int, rates: Sequence[int]) -> SimulateConfig:
    return SimulateConfig(
        cluster=ClusterConfig(nodes=f"{pairs}P{pairs}D", profile="a100-llama3-8b"),
        workload=WorkloadConfig(trace=public_trace(trace.file), limit=trace.requests * min(pairs, _MOST_PAIRS)),
        sweep=SweepConfig(policies=(_STATIC, _ONE, _OURS), rates=tuple(pairs * trace.rates_rps[at] for at in rates)),
    )


class _Point(NamedTuple):
    """One load on one cluster under the three policies."""

    sweep: str
    name: str
    static: Group
    one: Group
    ours: Group

    def over_static(self, read: Callable[[Figures], float | None]) -> float | None:
        return _ratio(self.ours.middle(read), self.static.middle(read))

    def over_one(self, read: Callable[[Figures], float | None]) -> float | None:
        return _ratio(self.ours.middle(read), self.one.middle(read))

    @property
    def overloaded(self) -> bool:
        return (self.static.middle(_mean_s) or 0.0) > _OVERLOADED_S


def _points(groups: Groups) -> Iterator[_Point]:
    for label, each in groups.items():
        for rate in rates_of(each):
            found = [group_at(each, policy, rate) for policy in (_STATIC, _ONE, _OURS)]
            static, one, ours = found
            if static is not None and one is not None and ours is not None:
                yield _Point(label, f"{label}, {rate:g} requests/s", static, one, ours)


def rows_of(groups: Groups) -> Sequence[Row]:
    """Over all points, then each point."""
    points = list(_points(groups))
    return [*_summary(points), *(row for point in points for row in _rows_of(point))]


def _summary(points: Sequence[_Point]) -> Iterator[Row]:
    highest = {point.sweep: point for point in points}.values()  # rates ascend
    overloaded = [point for point in points if point.overloaded]
    yield _throughput_row("at the highest load of each trace and size", list(highest), paper=16.2)
    yield _throughput_row("where static P/D's mean TTFT is beyond the objective", overloaded, paper=16.2)
    yield _throughput_row("at all points, also where the load is all there is to serve", points)
    most = max((gain for point in points if (gain := point.over_static(_tokens_per_s)) is not None), default=None)
    yield Row(quantity="token throughput over static P/D, most", expected=43.4, ours=_gain(most), unit="%")
    lower = [point for point in points if (point.over_static(_mean_s) or 1.0) < 1]
    yield Row(
        quantity="points with a mean TTFT below static P/D's", expected=float(len(points)) or None, ours=float(len(lower))
    )
    tails = [point.over_one(_p95_s) for point in points]
    yield Row(quantity=f"P95 TTFT over `{_ONE}`'s, geometric mean", expected=None, ours=_gain(_geometric_mean(tails)), unit="%")
    violations = [share for point in points if (share := point.ours.middle(_violations)) is not None]
    yield Row(
        quantity="most gaps over the TBT objective", expected=None, ours=_percent(max(violations, default=None)), unit="%"
    )


def _throughput_row(where: str, points: Sequence[_Point], paper: float | None = None) -> Row:
    mean = _geometric_mean([point.over_static(_tokens_per_s) for point in points])
    return Row(
        quantity=f"token throughput over static P/D {where}, geometric mean",
        expected=paper,
        ours=_gain(mean),
        unit="%",
        remark=f"{len(points)} points" + ("" if paper is None else "; 16.2 to 17.4 in the paper"),
    )


def _rows_of(point: _Point) -> Iterator[Row]:
    for quantity, read in (("token throughput", _tokens_per_s), ("mean TTFT", _mean_s), ("P95 TTFT", _p95_s)):
        ours = point.ours.middle(read)
        remark = f"{'-' if ours is None else format(ours, '.4g')}, {_signed(_gain(point.over_one(read)))} over `{_ONE}`"
        yield Row(
            quantity=f"{point.name}: {quantity} over static P/D",
            expected=None,
            ours=_gain(point.over_static(read)),
            unit="%",
            remark=remark,
        )


def _tokens_per_s(one: Figures) -> float:
    return one.output_tokens_per_s


def _mean_s(one: Figures) -> float | None:
    return one.ttft_s.mean


def _p95_s(one: Figures) -> float | None:
    return one.ttft_s.p95


def _violations(one: Figures) -> float | None:
    return one.tbt_s.violation_share


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _gain(ratio: float | None) -> float | None:
    return None if ratio is None else 100 * (ratio - 1)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f}%"


def _geometric_mean(ratios: Sequence[float | None]) -> float | None:
    known = [log(ratio) for ratio in ratios if ratio]
    return exp(sum(known) / len(known)) if known else None


EXPERIMENT = Experiment(
    name="crossflow",
    summary="leases against one deflection per node and static P/D, 4 and 16 nodes, on the traces in KAIROS_TRACES",
    sweeps=lambda: sweeps_of(_SIZES),
    rows=rows_of,
    expected_from="the Crossflow paper",
)
