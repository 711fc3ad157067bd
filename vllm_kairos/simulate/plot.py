"""Pictures of a sweep, as PNG."""

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vllm_kairos.errors import ConfigError
from vllm_kairos.simulate.figures import ERROR_RANKS, PARTS, Figures, PredictionError
from vllm_kairos.simulate.sections import ObjectivesConfig
from vllm_kairos.simulate.table import Group

_MOST_BREAKDOWNS = 3
_PANELS: tuple[tuple[str, Callable[[Figures], float | None], float], ...] = (
    ("P95 TTFT, ms", lambda one: one.ttft_s.p95, 1e3),
    ("P95 TBT, ms", lambda one: one.tbt_s.p95, 1e3),
    ("TBT violations, % of gaps", lambda one: one.tbt_s.violation_share, 100),
    ("output tokens per second", lambda one: one.output_tokens_per_s, 1),
    ("SLO attainment, %", lambda one: one.slo_attainment, 100),
    ("deflected, % of requests", lambda one: one.deflected / one.requests if one.requests else 0.0, 100),
)


def need_matplotlib() -> None:
    """Raise ConfigError where pictures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plots needs matplotlib (pip install 'vllm-kairos[bench]'), got none; or use --no-plots") from None


def draw_all(groups: Sequence[Group], objectives: ObjectivesConfig) -> dict[str, bytes]:
    """PNGs by file name."""
    return {
        "rates.png": draw_rates(groups, objectives),
        "breakdown.png": draw_breakdown(groups),
        "errors.png": draw_errors(groups),
    }


def draw_rates(groups: Sequence[Group], objectives: ObjectivesConfig) -> bytes:
    """Every panel's figure against the request rate, one line per policy."""
    figure, axes = _figure(2, 3, (15, 8))
    limits = (objectives.ttft_slo_ms, objectives.tbt_slo_ms)
    for at, (panel, (title, read, factor)) in enumerate(zip(axes.flat, _PANELS, strict=True)):
        for policy in _policies(groups):
            points = [(group.rate_rps or 0.0, group.middle(read)) for group in groups if group.policy == policy]
            known = sorted((rate, value * factor) for rate, value in points if value is not None)
            panel.plot([rate for rate, _ in known], [value for _, value in known], marker="o", label=policy)
        if at < len(limits):
            panel.axhline(limits[at], color="grey", linestyle="--", linewidth=1)
            panel.set_yscale("log")
            _plain_ticks(panel.yaxis)
        else:
            panel.set_ylim(bottom=0)
        panel.set(title=title, xlabel="requests per second" if groups[0].rate_rps else "at the workload's own rate")
    axes.flat[0].legend()
    return _png(figure)


def draw_breakdown(groups: Sequence[Group]) -> bytes:
    """Where the mean TTFT goes under each policy, at the least, the middle and the highest rate."""
    rates = list(dict.fromkeys(group.rate_rps for group in groups))
    shown = [rates[at] for at in sorted({0, len(rates) // 2, len(rates) - 1})][:_MOST_BREAKDOWNS]
    figure, axes = _figure(1, len(shown), (5.5 * len(shown), 4.2))
    for panel, rate in zip(np.atleast_1d(axes), shown, strict=True):
        chosen = [group for group in groups if group.rate_rps == rate]
        below = np.zeros(len(chosen))
        for name, label in PARTS.items():
            heights = np.array([_mean_ms(group, name) for group in chosen])
            panel.bar([group.policy for group in chosen], heights, bottom=below, label=label)
            below += heights
        panel.set(title="mean TTFT, ms" + ("" if rate is None else f", {rate:g} requests/s"))
        panel.tick_params(axis="x", rotation=30)
    figure.legend(*np.atleast_1d(axes)[0].get_legend_handles_labels(), loc="outside right center")
    return _png(figure)


def draw_errors(groups: Sequence[Group]) -> bytes:
    """How far predicted TTFTs were off, by policy, for what was kept and what was deflected."""
    figure, axes = _figure(1, 2, (11, 4.2))
    sides: tuple[tuple[str, Callable[[Figures], PredictionError]], ...] = (
        ("kept", lambda one: one.error_kept),
        ("deflected", lambda one: one.error_deflected),
    )
    for panel, (side, read) in zip(axes, sides, strict=True):
        for at, policy in enumerate(_policies(groups)):
            curves = [read(one).by_percentile for group in groups if group.policy == policy for one in group.figures]
            known = [curve for curve in curves if curve]
            if known:
                panel.plot(np.median(known, axis=0) * 100, ERROR_RANKS, label=policy, color=f"C{at % 10}")
        panel.set(title=f"TTFT prediction, {side} requests", xlabel="error, % of the actual TTFT", ylabel="% of decisions")
        panel.set_xscale("symlog", linthresh=1)
        panel.set_xlim(left=0)
        _plain_ticks(panel.xaxis)
        if panel.get_legend_handles_labels()[0]:
            panel.legend()
    return _png(figure)


def _policies(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(group.policy for group in groups))


def _mean_ms(group: Group, part: str) -> float:
    return 1e3 * (group.middle(lambda one: one.breakdown[part].mean) or 0.0)


def _plain_ticks(axis: Any) -> None:
    """Label a logarithmic axis with 400 in place of 4 x 10^2, and only where labels have room."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    def plain(value: float, _at: int | None = None) -> str:
        return f"{value:,.10g}"

    axis.set_major_formatter(FuncFormatter(plain))
    chosen = LogFormatter(labelOnlyBase=False, minor_thresholds=(2, 0.5))
    chosen.set_axis(axis)

    def minor(value: float, at: int | None = None) -> str:
        return plain(value) if chosen(value, at) else ""

    if axis.get_scale() == "log":
        axis.set_minor_formatter(FuncFormatter(minor))


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=size, constrained_layout=True)
    return figure, axes


def _png(figure: Any) -> bytes:
    from matplotlib import pyplot

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return picture.getvalue()
