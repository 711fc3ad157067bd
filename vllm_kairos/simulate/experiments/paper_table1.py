"""Table 1: the five workloads, drawn."""

from collections.abc import Mapping, Sequence
from functools import cache

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row
from vllm_kairos.workload.describe import describe
from vllm_kairos.workload.generate import generate
from vllm_kairos.workload.paper import PAPER_WORKLOADS

_REQUESTS, _SEED = 20_000, 0


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {}


def _rows(_groups: Groups) -> Sequence[Row]:
    return _drawn()


@cache
def _drawn() -> Sequence[Row]:
    loads = {name: describe(generate(name, requests=_REQUESTS, seed=_SEED)) for name in PAPER_WORKLOADS}
    return [
        Row(quantity=f"{name}: {one.quantity}", expected=one.paper, ours=one.achieved)
        for name, load in loads.items()
        for one in load.beside_paper
    ]


EXPERIMENT = Experiment(
    name="paper-table1",
    summary=f"the paper's five workloads: {_REQUESTS} requests of each drawn with seed {_SEED}, nothing simulated",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="the paper's Table 1 and section 3",
)
