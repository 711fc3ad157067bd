"""A comparison's picture: a row of panels for each case."""

from collections.abc import Mapping, Sequence

from benchmarks.governor.contenders import GOVERNOR, STOCK, of_name
from benchmarks.serving.derive import Point
from benchmarks.serving.pictures import draw_lines, png

_PANELS: tuple[tuple[str, str, float], ...] = (
    ("late, %", "late_share", 100),
    ("P95 TTFT, ms", "ttft_p95_s", 1e3),
    ("goodput, requests per second", "good_rps", 1),
)
_LOGARITHMIC = "ttft_p95_s"


def draw(cases: Mapping[str, tuple[Sequence[Point], float]]) -> bytes:
    """The PNG: by case its points and its TTFT objective in milliseconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (5.0 * len(_PANELS), 3.4 * len(cases))
    figure, axes = pyplot.subplots(len(cases), len(_PANELS), figsize=size, constrained_layout=True, squeeze=False)
    for row, (case, (points, ttft_slo_ms)) in zip(axes, cases.items(), strict=True):
        lasting = [point for point in points if not of_name(point.contender).is_scaled]
        for panel, (title, name, factor) in zip(row, _PANELS, strict=True):
            draw_lines(panel, lasting, name, factor, main=(GOVERNOR, STOCK))
            panel.set(title=f"{case}: {title}", xlabel="requests per second")
            if name == _LOGARITHMIC:
                panel.set_yscale("log")
            else:
                panel.set_ylim(bottom=0)
        row[1].axhline(ttft_slo_ms, color="grey", linestyle="--", linewidth=1)
        row[0].legend(fontsize="x-small")
    return png(figure)
