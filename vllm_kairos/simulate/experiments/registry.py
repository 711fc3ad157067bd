"""Every experiment by name."""

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.experiments import (
    crossflow,
    crossflow_64,
    governor,
    governor_patience,
    paper_fig4,
    paper_fig5,
    paper_fig6,
    paper_table1,
    paper_table3,
    paper_table4,
    rising_load,
)
from vllm_kairos.simulate.experiments.experiment import Experiment

_MODULES = (
    rising_load,
    paper_table1,
    paper_table3,
    paper_table4,
    paper_fig4,
    paper_fig5,
    paper_fig6,
    crossflow,
    crossflow_64,
    governor,
    governor_patience,
)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


def find_experiment(name: str) -> Experiment:
    """Return the experiment called `name`. Raises ConfigError naming the known ones."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"--experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
