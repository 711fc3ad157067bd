"""The profile that `kairos profile` measured on a CPU, as it left it in benchmarks/results."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from vllm_kairos.fitting.artifact import Profile, load_profile

_MEASURED = Path(__file__).parents[1] / "results/cpu-profile.json"
_SOURCE = (
    "Prefill, decode and mixed steps measured by `kairos profile` on a running engine, each regime with its own held-out "
    "configurations; the command is in benchmarks/README.md."
)


def build(_data: Path) -> Profile:
    """Return the measured profile with a word on where it is from."""
    return replace(load_profile(_MEASURED), source=_SOURCE)


BUILDERS: Mapping[str, Callable[[Path], Profile]] = {"cpu-smollm2-135m": build}
