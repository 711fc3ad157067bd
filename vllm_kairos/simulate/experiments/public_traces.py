"""Where experiments find the public traces that they read."""

import os
from collections.abc import Iterable
from pathlib import Path

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.config import SimulateConfig

_VARIABLE = "KAIROS_TRACES"
_DEFAULT = "traces"


def public_trace(file: str) -> str:
    """The path of a trace by its place in the folder."""
    return str(Path(os.environ.get(_VARIABLE) or _DEFAULT, file))


def need_traces(experiment: str, configs: Iterable[SimulateConfig]) -> None:
    """Raise ConfigError that says how to name the folder where a trace of the experiment is missing."""
    for trace in (config.workload.trace for config in configs):
        if trace is not None and not os.path.exists(trace):
            given = repr(os.environ[_VARIABLE]) if os.environ.get(_VARIABLE) else "nothing"
            rule = f"must name the folder of public traces that {experiment!r} reads"
            raise ConfigError(f"{_VARIABLE} {rule}, got {given}: there is no {trace}")
