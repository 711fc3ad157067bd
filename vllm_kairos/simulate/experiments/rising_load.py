"""Plain P/D against deflection on 2P2D as the paper's Bursty load rises; a template for other experiments."""

from collections.abc import Iterator, Mapping, Sequence

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row, group_at, rates_of
from vllm_kairos.simulate.sections import ClusterConfig, SweepConfig, WorkloadConfig
from vllm_kairos.simulate.table import Group

_PLAIN, _OURS = "never", "kairos"


def _sweeps() -> Mapping[str, SimulateConfig]:
    config = SimulateConfig(
        cluster=ClusterConfig(nodes="2P2D", profile="a100-llama3-8b"),
        workload=WorkloadConfig(generate="Bursty", requests=2000),
        sweep=SweepConfig(policies=(_PLAIN, _OURS), rates=(2.0, 3.0, 4.0, 5.0), seeds=(0, 1, 2)),
    )
    return {"bursty": config}


def _rows(groups: Groups) -> Sequence[Row]:
    return [row for rate in rates_of(groups["bursty"]) for row in _rows_at(groups["bursty"], rate)]


def _rows_at(groups: Sequence[Group], rate: float) -> Iterator[Row]:
    plain, ours = group_at(groups, _PLAIN, rate), group_at(groups, _OURS, rate)
    if plain is None or ours is None:
        return
    before_s, after_s = (group.middle(lambda one: one.ttft_s.p95) for group in (plain, ours))
    cut = 100 * (1 - after_s / before_s) if before_s and after_s is not None else None
    yield Row(quantity=f"P95 TTFT reduction at {rate:g} requests/s", expected=None, ours=cut, unit="%")


EXPERIMENT = Experiment(
    name="rising-load",
    summary="plain P/D against deflection on 2P2D as the Bursty load rises",
    sweeps=_sweeps,
    rows=_rows,
)
