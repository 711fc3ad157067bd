"""Every experiment by name."""

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.experiments import rising_load
from vllm_kairos.simulate.experiments.experiment import Experiment

_MODULES = (rising_load,)
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}


def find_experiment(name: str) -> Experiment:
    """Return the experiment called `name`. Raises ConfigError naming the known ones."""
    if name not in EXPERIMENTS:
        raise ConfigError(f"--experiment must be one of {', '.join(EXPERIMENTS)}, got {name!r}")
    return EXPERIMENTS[name]
