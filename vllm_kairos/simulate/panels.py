"""The picture of an experiment, as PNG."""

import io
from collections.abc import Sequence
from typing import Any

from vllm_kairos.simulate.experiments.experiment import Panel, policies_of
from vllm_kairos.simulate.table import Group

_INCHES = (5.5, 4.2)


def draw_panels(groups: Sequence[Group], panels: Sequence[Panel]) -> bytes:
    """One plot beside the other, each against the request rate."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (_INCHES[0] * len(panels), _INCHES[1])
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, constrained_layout=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=True):
        _draw(axis, groups, panel)
    axes.flat[0].legend()
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return picture.getvalue()


def _draw(axis: Any, groups: Sequence[Group], panel: Panel) -> None:
    for policy in policies_of(groups):
        points = [(group.rate_rps or 0.0, group.middle(panel.read)) for group in groups if group.policy == policy]
        known = sorted((rate, value * panel.factor) for rate, value in points if value is not None)
        axis.plot([rate for rate, _ in known], [value for _, value in known], marker="o", label=policy)
    if panel.marks:
        axis.plot(*zip(*panel.marks, strict=True), "kx", label="the paper")
        axis.legend()
    if panel.limit is not None:
        axis.axhline(panel.limit, color="grey", linestyle="--", linewidth=1)
    axis.set_ylim(bottom=0)
    axis.set(title=panel.title, xlabel="requests per second")
