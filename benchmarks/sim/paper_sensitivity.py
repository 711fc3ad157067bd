"""Where plain P/D and Kairos stop to meet the paper's P95 objectives, for settings that the paper does not print.

    python -m benchmarks.sim.paper_sensitivity --out FILE

For each (SCV of the gaps, NIC rate) the highest rate by bisection, per policy and seed; one process.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from vllm_kairos.results.json_text import to_json
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.document import environment
from vllm_kairos.simulate.experiments.paper_setting import OURS, PLAIN, paper_config
from vllm_kairos.simulate.experiments.sustained import p95_criterion
from vllm_kairos.simulate.sweep import Cell, run_cells

SETTINGS = ((4.0, 25.0), (4.0, 1.0), (4.0, 0.8), (2.0, 1.0), (1.0, 3.0), (1.0, 1.0), (1.0, 0.8))
SEEDS = (0, 2)
LEAST_RPS, MOST_RPS, HALVINGS = 4.0, 12.0, 6
CRITERION = p95_criterion(4.0, 0.070)


def main() -> None:
    """Write a row per setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    rows = [row(scv, nic_gb_per_s) for scv, nic_gb_per_s in SETTINGS]
    document = {
        "command": "python -m benchmarks.sim.paper_sensitivity --out FILE",
        "environment": environment(paper_config((PLAIN,))),
        "criterion": CRITERION.name,
        "seeds": SEEDS,
        "rows": rows,
    }
    out.write_text(to_json(document), encoding="utf-8")


def row(scv: float, nic_gb_per_s: float) -> dict[str, Any]:
    """The rates of both policies under one setting."""
    config = paper_config((PLAIN, OURS))
    config = replace(
        config,
        network=replace(config.network, nic_gb_per_s=nic_gb_per_s),
        workload=replace(config.workload, scv=scv),
    )
    plain, kairos = ([highest_rps(config, policy, seed) for seed in SEEDS] for policy in (PLAIN, OURS))
    return {"scv": scv, "nic_gb_per_s": nic_gb_per_s, PLAIN: plain, OURS: kairos, "ratio": ratio(plain, kairos)}


def ratio(plain: Sequence[float], kairos: Sequence[float]) -> float:
    """The median over the seeds of Kairos' rate over plain P/D's."""
    return median(ours / theirs for theirs, ours in zip(plain, kairos, strict=True))


def highest_rps(config: SimulateConfig, policy: str, seed: int) -> float:
    """The middle of the last interval that bisection is left with."""
    low, high = LEAST_RPS, MOST_RPS
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        [result] = run_cells([Cell(config=config, policy=policy, rate_rps=rate, seed=seed)], workers=1)
        low, high = (rate, high) if CRITERION.read(result.figures) <= CRITERION.limit else (low, rate)
    return (low + high) / 2


if __name__ == "__main__":
    main()
