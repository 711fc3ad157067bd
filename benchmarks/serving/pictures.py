"""A comparison's pictures, as PNG."""

import io
from collections.abc import Collection, Sequence
from typing import Any

from benchmarks.serving.derive import OURS, PLAIN, Point

_PANELS: tuple[tuple[str, str, float], ...] = (
    ("P95 TTFT, ms", "ttft_p95_s", 1e3),
    ("P95 TBT, ms", "tbt_p95_s", 1e3),
    ("requests that attain both objectives, %", "slo_attainment", 100),
    ("gaps over the TBT objective, %", "tbt_violation_share", 100),
    ("output tokens per second", "output_tokens_per_s", 1),
    ("goodput, requests per second", "goodput_rps", 1),
)
PICTURES = frozenset({"rates.png", "headline.png"})


def draw_all(points: Sequence[Point], *, ttft_slo_ms: float, tbt_slo_ms: float) -> dict[str, bytes]:
    """PNGs by file name."""
    limits = {"ttft_p95_s": ttft_slo_ms, "tbt_p95_s": tbt_slo_ms}
    names = [name for _, name, _ in _PANELS]
    return {"rates.png": _draw(points, names, limits), "headline.png": _draw(points, names[:1] + names[2:3], limits)}


def _draw(points: Sequence[Point], names: Sequence[str], limits: dict[str, float]) -> bytes:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = 2 if len(names) > 2 else 1
    columns = -(-len(names) // rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=(5.4 * columns, 4.2 * rows), constrained_layout=True)
    for panel, name in zip(axes.flat, names, strict=True):
        title, _, factor = next(one for one in _PANELS if one[1] == name)
        draw_lines(panel, points, name, factor, main=(OURS, PLAIN))
        panel.set(title=title, xlabel="requests per second")
        if name in limits:
            panel.axhline(limits[name], color="grey", linestyle="--", linewidth=1)
        if name == "ttft_p95_s":
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside right center", fontsize="small")
    return png(figure)


def png(figure: Any) -> bytes:
    """The figure as a PNG that is the same for the same figure; it is closed."""
    from matplotlib import pyplot

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return picture.getvalue()


def draw_lines(panel: Any, points: Sequence[Point], name: str, factor: float, *, main: Collection[str]) -> None:
    """Each contender's medians as a line, and least to most as a band for those of `main`."""
    for at, contender in enumerate(dict.fromkeys(point.contender for point in points)):
        here = [point for point in points if point.contender == contender and name in point.figures]
        if not here:
            continue
        rates = [point.rate_rps for point in here]
        spreads = [point.figures[name] for point in here]
        is_main = contender in main
        color = f"C{at % 10}"
        width = 2.5 if is_main else 1.2
        panel.plot(rates, [one.median * factor for one in spreads], marker="o", label=contender, color=color, linewidth=width)
        if is_main:
            least, most = ([getattr(one, end) * factor for one in spreads] for end in ("least", "most"))
            panel.fill_between(rates, least, most, color=color, alpha=0.15, linewidth=0)
