"""The picture of one replay, as PNG."""

import io
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from vllm_kairos.errors import ConfigError
from vllm_kairos.replay.figures import Objectives
from vllm_kairos.replay.open_loop import INTERRUPTED
from vllm_kairos.replay.sample import Sample

_BUCKETS = 60


def need_matplotlib() -> None:
    """Raise ConfigError where pictures cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plots needs matplotlib (pip install 'vllm-kairos[bench]'), got none; or use --no-plots") from None


def draw(samples: Sequence[Sample], objectives: Objectives) -> bytes:
    """Six panels: TTFT over time, how TTFT, TBT and TPOT are distributed, the rate, and how late requests were sent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8), constrained_layout=True)
    good = [sample for sample in samples if sample.ok]
    timeline, ttft, tbt, rate, lag, tpot = axes.flat
    _timeline(timeline, samples)
    _distribution(ttft, "TTFT", (sample.ttft_s for sample in good), objectives.ttft_s)
    _distribution(tbt, "TBT", (gap_s for sample in good for gap_s in sample.gaps_s), objectives.tbt_s)
    _rate(rate, samples)
    lag.plot([sample.due_s for sample in samples], [sample.send_lag_s * 1e3 for sample in samples], ".", markersize=3)
    lag.set(title="send lag, ms", xlabel="due at, s")
    _distribution(tpot, "TPOT", (sample.tpot_s for sample in good), objectives.tbt_s)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, metadata={"Software": None})
    pyplot.close(figure)
    return picture.getvalue()


def _timeline(axes: Any, samples: Sequence[Sample]) -> None:
    known = [(sample.due_s, sample.ttft_s) for sample in samples if sample.ok]
    axes.plot([due_s for due_s, _ in known], [ttft_s for _, ttft_s in known], ".", label="answered")
    failed = [sample.due_s for sample in samples if not sample.ok and sample.error != INTERRUPTED]
    if failed:
        axes.plot(failed, [0.0] * len(failed), "x", color="tab:red", label="failed")
    axes.set(title="TTFT of each request, s", xlabel="due at, s")
    axes.legend()


def _distribution(axes: Any, name: str, values_s: Iterable[float | None], objective_s: float) -> None:
    ordered_ms = np.sort(np.array([value_s for value_s in values_s if value_s is not None])) * 1e3
    axes.plot(ordered_ms, np.arange(1, len(ordered_ms) + 1) / max(1, len(ordered_ms)))
    axes.axvline(objective_s * 1e3, color="grey", linestyle="--", linewidth=1, label=f"objective {objective_s * 1e3:g} ms")
    axes.set(title=f"{name}: share at most this long", xlabel="ms", ylim=(0, 1.01))
    axes.legend(loc="lower right")


def _rate(axes: Any, samples: Sequence[Sample]) -> None:
    end_s = max((sample.ended_s for sample in samples), default=0.0) or 1.0
    for label, moments_s in (
        ("due", [sample.due_s for sample in samples]),
        ("answered", [sample.ended_s for sample in samples if sample.ok]),
    ):
        counts, edges = np.histogram(moments_s, bins=_BUCKETS, range=(0.0, end_s))
        axes.step(edges[:-1], counts / (end_s / _BUCKETS), where="post", label=label)
    axes.set(title="requests per second", xlabel="s")
    axes.legend()
