"""Figure 5: throughput against the request rate."""

from collections.abc import Iterator, Mapping, Sequence

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Panel, Row, group_at, policies_of, rates_of
from vllm_kairos.simulate.experiments.paper_setting import OURS, PLAIN, figure_config, name_of
from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.table import Group


def _output(one: Figures) -> float:
    return one.output_tokens_per_s


def _total(one: Figures) -> float:
    return one.total_tokens_per_s


_THROUGHPUTS = {"output": _output, "total": _total}


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {"bursty": figure_config()}


def _rows(groups: Groups) -> Sequence[Row]:
    return [row for rate in rates_of(groups["bursty"]) for row in _rows_at(groups["bursty"], rate)]


def _rows_at(groups: Sequence[Group], rate: float) -> Iterator[Row]:
    for what, read in _THROUGHPUTS.items():
        found = {policy: group_at(groups, policy, rate) for policy in policies_of(groups)}
        values = {policy: group.middle(read) for policy, group in found.items() if group is not None}
        for policy, ours in values.items():
            quantity = f"{name_of(policy)}: {what} tokens per second at {rate:g} requests/s"
            yield Row(quantity=quantity, expected=None, ours=ours)
        plain, ours = values.get(PLAIN), values.get(OURS)
        more = 100 * (ours / plain - 1) if plain and ours is not None else None
        remark = "the paper: similar at low rates, higher at high ones"
        yield Row(
            quantity=f"Kairos over plain P/D, {what}, at {rate:g} requests/s", expected=None, ours=more, unit="%", remark=remark
        )


EXPERIMENT = Experiment(
    name="paper-fig5",
    summary="output and total token throughput on 2P2D as the Bursty load rises",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="the paper's Figure 5 and section 6.3",
    panels=(Panel("output tokens per second", _output), Panel("total tokens per second", _total)),
)
