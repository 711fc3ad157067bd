"""The demo's picture: TTFT of every request over time, and how TTFT and TBT are distributed."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from vllm_kairos.demo.run import DEFLECTING, PLAIN, DemoResult, PolicyRun

_LOOK = {PLAIN: ("plain P/D", "#c05a2b"), DEFLECTING: ("deflection", "#2b6cc0")}


def draw(result: DemoResult) -> bytes:
    """Return a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (timeline, ttft, tbt) = pyplot.subplots(1, 3, figsize=(15, 4.2), constrained_layout=True)
    _timeline(timeline, result.runs)
    objectives = result.settings.objectives
    _distribution(ttft, {policy: _ttfts_s(result.runs, policy) for policy in _LOOK}, objectives.ttft_s * 1e3, "TTFT")
    _distribution(tbt, {policy: _gaps_s(result.runs, policy) for policy in _LOOK}, objectives.tbt_s * 1e3, "TBT")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    pyplot.close(figure)
    return picture.getvalue()


def _timeline(axes: Any, runs: Sequence[PolicyRun]) -> None:
    for policy, (label, colour) in _LOOK.items():
        good = [sample for run in runs if run.policy == policy for sample in run.samples if not sample.error]
        axes.scatter([each.due_s for each in good], [each.ttft_s for each in good], s=12, alpha=0.6, color=colour, label=label)
    axes.set(xlabel="sent at, s", ylabel="TTFT, s", title="time to first token of each request")
    axes.set_ylim(bottom=0)
    axes.legend()


def _distribution(axes: Any, values_s: dict[str, list[float]], objective_ms: float, name: str) -> None:
    for policy, (label, colour) in _LOOK.items():
        ordered_ms = np.sort(values_s[policy]) * 1e3
        share = np.arange(1, len(ordered_ms) + 1) / max(1, len(ordered_ms))
        axes.plot(ordered_ms, share, color=colour, label=label)
    axes.axvline(objective_ms, color="grey", linestyle="--", linewidth=1, label=f"objective {objective_ms:g} ms")
    axes.set(xlabel=f"{name}, ms", ylabel="share of all", title=f"{name}: share at most this long", ylim=(0, 1.01))
    axes.set_xlim(left=0)
    axes.legend(loc="lower right")


def _ttfts_s(runs: Sequence[PolicyRun], policy: str) -> list[float]:
    return [sample.ttft_s for run in runs if run.policy == policy for sample in run.samples if not sample.error]


def _gaps_s(runs: Sequence[PolicyRun], policy: str) -> list[float]:
    return [gap for run in runs if run.policy == policy for sample in run.samples if not sample.error for gap in sample.gaps_s]
