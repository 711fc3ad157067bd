"""The comparison with the paper, as committed: experiment.json of every paper experiment.

    python -m benchmarks.sim.paper_results --out benchmarks/results/sim [NAME ...]

Each file has the bytes that `kairos simulate --experiment NAME` leaves; Figures 4 to 6 share one sweep here.
"""

import argparse
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from vllm_kairos.simulate.experiment_run import configs_of, experiment_files, run_sweeps
from vllm_kairos.simulate.experiments.experiment import Experiment
from vllm_kairos.simulate.experiments.registry import EXPERIMENTS, find_experiment

NAMES = tuple(name for name in EXPERIMENTS if name.startswith("paper-"))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    for _, alike in groupby(map(find_experiment, arguments.names), key=lambda experiment: experiment.sweeps()):
        write(list(alike), arguments.out, arguments.workers)


def write(alike: Sequence[Experiment], out: Path, workers: int) -> None:
    """Run the sweeps that these experiments have in common, and write each one's comparison."""
    configs = configs_of(alike[0], {})
    results = run_sweeps(configs, workers=workers, tell=lambda _more: None)
    for experiment in alike:
        files = experiment_files(f"kairos simulate --experiment {experiment.name}", experiment, configs, results, {})
        (out / f"{experiment.name}.json").write_text(str(files["experiment.json"]), encoding="utf-8")


if __name__ == "__main__":
    main()
