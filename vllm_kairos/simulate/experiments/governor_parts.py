"""The governor with one of its parts and without, on the loads and servers of the experiment `governor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.experiments.experiment import Experiment, Groups, Row, group_at, rates_of, spread_of
from vllm_kairos.simulate.experiments.governor import OURS, attained, attained_each, sweeps_of
from vllm_kairos.simulate.sections import GovernorConfig
from vllm_kairos.simulate.table import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part, and the value of the setting that leaves it out."""

    name: str
    setting: str
    off: Any
    about: str

    def sweeps(self) -> Mapping[str, SimulateConfig]:
        """Each of the loads without it and with it."""
        return {
            self._label(load, is_on): replace(config, governor=config.governor if is_on else self._off(config.governor))
            for load, config in sweeps_of((OURS,)).items()
            for is_on in (False, True)
        }

    def rows(self, groups: Groups) -> Sequence[Row]:
        """What is attained with it beside what is without, for each load and rate."""
        loads = [load for load in sweeps_of((OURS,)) if self._label(load, True) in groups]
        return [row for load in loads for row in self._load_rows(load, groups)]

    def experiment(self) -> Experiment:
        return Experiment(
            name=f"governor-{self.name}",
            summary=f"one aggregated server with prefill sized by deadlines: {self.about}",
            sweeps=self.sweeps,
            rows=self.rows,
            expected_from=f"no {self.name}",
        )

    def _off(self, config: GovernorConfig) -> GovernorConfig:
        return replace(config, **{self.setting: self.off})

    def _label(self, load: str, is_on: bool) -> str:
        return f"{load}-{'with' if is_on else 'no'}-{self.name}"

    def _load_rows(self, load: str, groups: Groups) -> Iterator[Row]:
        without, ours = (groups[self._label(load, is_on)] for is_on in (False, True))
        for rate in rates_of(ours):
            first, second = group_at(without, OURS, rate), group_at(ours, OURS, rate)
            if first is not None and second is not None:
                yield _row(f"{load} at {rate:g} requests/s: attained", first, second)


def _row(quantity: str, without: Group, ours: Group) -> Row:
    theirs = spread_of(attained_each(without))
    remark = "" if theirs is None else f"without: {theirs[0]:.4g} to {theirs[1]:.4g}"
    spread = spread_of(attained_each(ours))
    return Row(quantity=quantity, expected=attained(without), ours=attained(ours), remark=remark, spread=spread)


# Without patience: the largest safe chunk at once.
PATIENCE = _Part(
    name="patience",
    setting="patience_tokens",
    off=0.0,
    about=f"patience of {GovernorConfig().patience_tokens:g} tokens' time against none",
).experiment()
TTFT = _Part(name="ttft", setting="ttft_slo_ms", off=None, about="told of the TTFT objective against not").experiment()
