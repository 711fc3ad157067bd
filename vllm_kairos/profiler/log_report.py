"""Say on a terminal what was fitted to recorded steps, and how far the profile before it was off."""

from pathlib import Path

from vllm_kairos.core.regime import Regime
from vllm_kairos.profiler.from_log import FittedLog


def render_log(fitted: FittedLog, path: Path) -> str:
    """Return the report, errors as a table of held-out shapes."""
    return "\n".join((*_table(fitted), "", *_notes(fitted), f"wrote {path}", ""))


def _table(fitted: FittedLog) -> list[str]:
    previous = fitted.previous
    heading = f"{'model':<10}{'steps':>10}{'shapes':>8}{'held out':>10}{'MAPE':>8}{'worst':>8}"
    lines = [heading + (f"{'MAPE before':>13}{'actual/before':>15}" if previous else "")]
    for regime in Regime:
        found = fitted.profile.accuracy[regime.value]
        counts = f"{regime.value:<10}{fitted.steps[regime]:>10,}{fitted.shapes[regime]:>8}{found.configurations:>10}"
        before = f"{previous.accuracy[regime].mape:>13.1%}{previous.ratios[regime]:>15.2f}" if previous else ""
        lines.append(f"{counts}{found.mape:>8.1%}{found.worst_error:>8.1%}{before}")
    return lines


def _notes(fitted: FittedLog) -> list[str]:
    profile = fitted.profile
    notes = [f"{profile.model} on {profile.hardware}, vLLM {profile.vllm_version}; {profile.note}", *fitted.notes]
    if fitted.previous:
        notes.append(f"before: {fitted.previous.name}, over all shapes")
    if fitted.dropped:
        notes.append(f"{len(fitted.dropped)} shapes were left out of the fit as outliers")
    return notes
