"""Every experiment by name."""

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.experiments import (
    crossflow,
    crossflow_64,
    governor,
    governor_parts,
    paper_fig4,
    paper_fig5,
    paper_fig6,
    paper_table1,
    paper_table3,
    paper_table4,
    rising_load,
)
from vllm_kairos.simulate.experiments.experiment import Experiment

_ALL = (
    rising_load.EXPERIMENT,
    paper_table1.EXPERIMENT,
    paper_table3.EXPERIMENT,
    paper_table4.EXPERIMENT,
    paper_fig4.EXPERIMENT,
    paper_fig5.EXPERIMENT,
    paper_fig6.EXPERIMENT,
    crossflow.EXPERIMENT,
    crossflow_64.EXPERIMENT,
    governor.EXPERIMENT,
    governor_parts.PATIENCE,
    governor_parts.TTFT,
)
EXPERIMENTS: dict[str, Experiment] = {each.name: each for each in _ALL}


def find_experiment(name: str) -> Experiment:
    """Return the experiment called `name`. Raises ConfigError naming the known ones."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"--experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
