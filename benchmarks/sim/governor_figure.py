"""docs/governor.svg: goodput against the request rate, the governor beside every fixed chunk, from the published JSON.

python -m benchmarks.sim.governor_figure --results benchmarks/results/sim/governor.json --out docs/governor.svg
"""

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from vllm_kairos.simulate.experiments.governor import OURS

_INCHES = (12.0, 5.4)
_COLUMNS = 4


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    figures = json.loads(arguments.results.read_text(encoding="utf-8"))["figures"]
    arguments.out.write_bytes(draw(figures))


def draw(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """One plot for each load and objective, as SVG; the same bytes for the same figures."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kairos"
    from matplotlib import pyplot

    rows = -(-len(figures) // _COLUMNS)
    figure, axes = pyplot.subplots(rows, _COLUMNS, figsize=_INCHES, constrained_layout=True, squeeze=False)
    for axis, (label, points) in zip(axes.flat, figures.items(), strict=True):
        _draw(axis, label, points)
    axes.flat[0].legend(fontsize=7)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return picture.getvalue()


def _draw(axis: Any, label: str, points: Sequence[Mapping[str, Any]]) -> None:
    policies = list(dict.fromkeys(point["policy"] for point in points))
    for policy in policies:
        curve = sorted((point["rate_rps"], _goodput_rps(point)) for point in points if point["policy"] == policy)
        ours = policy == OURS
        name, width = ("governor", 2.5) if ours else (policy.partition(":")[2], 1.0)
        axis.plot(*zip(*curve, strict=True), marker=".", label=name, linewidth=width, color="black" if ours else None)
    axis.set_ylim(bottom=0)
    axis.set_title(label, fontsize=9)
    axis.tick_params(labelsize=7)
    axis.set_xlabel("requests/s", fontsize=7)
    axis.set_ylabel("attained, requests/s", fontsize=7)


def _goodput_rps(point: Mapping[str, Any]) -> float:
    return float(point["rate_rps"] * median(point["slo_attainment"]))


if __name__ == "__main__":
    main()
