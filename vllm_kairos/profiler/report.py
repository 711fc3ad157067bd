"""Say on a terminal what was measured, how far the models are off, and what was dropped."""

from pathlib import Path

from vllm_kairos.core.regime import Regime
from vllm_kairos.profiler.api import MeasuredProfile
from vllm_kairos.profiler.recorder import OUTLIER_FACTOR, configurations

# A pinned engine computes all the time; start-up waits for the disk, hence not closer to one.
LEAST_CPU_SHARE = 0.8


def render(measured: MeasuredProfile, path: Path) -> str:
    """Return the report, errors as a table of held-out configurations."""
    return "\n".join((*_table(measured), "", *_notes(measured), f"wrote {path}", ""))


def _table(measured: MeasuredProfile) -> list[str]:
    counts = configurations(measured.condensed.samples)
    lines = [f"{'model':<10}{'configurations':>16}{'held out':>10}{'MAPE':>8}{'worst':>8}"]
    for regime in Regime:
        found = measured.profile.accuracy[regime.value]
        errors = f"{found.mape:>8.1%}{found.worst_error:>8.1%}"
        lines.append(f"{regime.value:<10}{counts[regime]:>16}{found.configurations:>10}{errors}")
    return lines


def _notes(measured: MeasuredProfile) -> list[str]:
    outcome, recorder, profile = measured.outcome, measured.outcome.recorder, measured.profile
    steps = f"{len(recorder.samples)} steps in {measured.elapsed_s:.0f} s, pass {outcome.passes}"
    notes = [
        f"{profile.model} on {profile.hardware}, vLLM {profile.vllm_version}",
        f"{steps}{', cut by the time budget' if outcome.cut else ''}; {recorder.warmup_steps} warm-up steps discarded",
        f"{measured.condensed.disturbed} repeats took over {OUTLIER_FACTOR:g} times their median",
        f"between two steps: {profile.period_overhead_s * 1e3:.2f} ms",
    ]
    if measured.cpu_share is not None and measured.cpu_share < LEAST_CPU_SHARE:
        share = f"the engine had its CPU {measured.cpu_share:.0%} of the time"
        notes.append(f"warning: {share}; other work on it disturbs caches and memory at least")
    if recorder.unplanned_steps:
        notes.append(f"{recorder.unplanned_steps} steps were not the planned batch and were left out")
    if measured.dropped:
        names = "; ".join(sorted({sample.configuration for sample in measured.dropped}))
        notes.append(f"left out of the fit as outliers: {names}")
    return notes
