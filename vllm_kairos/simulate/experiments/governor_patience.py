"""The governor with patience and without, on the loads and servers of the experiment `governor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row, group_at, rates_of, spread_of
from vllm_kairos.simulate.experiments.governor import OURS, attained, attained_each, sweeps_of
from vllm_kairos.simulate.sections import GovernorConfig
from vllm_kairos.simulate.table import Group

_NONE_TOKENS = 0.0  # the largest safe chunk at once
_OURS_TOKENS = GovernorConfig().patience_tokens


def _sweeps() -> Mapping[str, SimulateConfig]:
    return {
        _label(load, patience): replace(config, governor=replace(config.governor, patience_tokens=patience))
        for load, config in sweeps_of((OURS,)).items()
        for patience in (_NONE_TOKENS, _OURS_TOKENS)
    }


def _label(load: str, patience_tokens: float) -> str:
    return f"{load}-patience-{patience_tokens:g}"


def _rows(groups: Groups) -> Sequence[Row]:
    """What is attained with patience beside what is without, for each load and rate."""
    loads = [load for load in sweeps_of((OURS,)) if _label(load, _OURS_TOKENS) in groups]
    return [row for load in loads for row in _load_rows(load, groups)]


def _load_rows(load: str, groups: Groups) -> Iterator[Row]:
    without, ours = (groups[_label(load, patience)] for patience in (_NONE_TOKENS, _OURS_TOKENS))
    for rate in rates_of(ours):
        first, second = group_at(without, OURS, rate), group_at(ours, OURS, rate)
        if first is not None and second is not None:
            yield _row(f"{load} at {rate:g} requests/s: attained", first, second)


def _row(quantity: str, without: Group, ours: Group) -> Row:
    theirs = spread_of(attained_each(without))
    remark = "" if theirs is None else f"without: {theirs[0]:.4g} to {theirs[1]:.4g}"
    spread = spread_of(attained_each(ours))
    return Row(quantity=quantity, expected=attained(without), ours=attained(ours), remark=remark, spread=spread)


EXPERIMENT = Experiment(
    name="governor-patience",
    summary=f"one aggregated server with prefill sized by deadlines: patience of {_OURS_TOKENS:g} tokens' time against none",
    sweeps=_sweeps,
    rows=_rows,
    expected_from="no patience",
)
