"""A report of steps as text for a person."""

from collections.abc import Iterator

from vllm_kairos.steps.report import CauseFigures, RegimeFigures, StepReport

_CAUSE_HEADINGS = ("token gaps by cause", "gaps", "violations", "% of all gaps", "p50 ms", "p95 ms", "p99 ms", "longest ms")
_REGIME_HEADINGS = ("steps by regime", "steps", "predicted", "mean ms", "error p50", "error p95", "ratio p50", "ratio p95")


def lines(name: str, report: StepReport) -> Iterator[str]:
    """The whole report of one node."""
    of_which = f", {report.deflected_tokens:,} of them deflected" if report.deflected_tokens else ""
    yield f"{name}: {report.steps:,} steps, {report.prefill_tokens:,} prefill tokens{of_which}"
    rows = [_CAUSE_HEADINGS, *(_cause_row(label, figures) for label, figures in report.causes.items())]
    yield from _aligned([*rows, _cause_row("all", report.total)])
    yield ""
    yield from _aligned([_REGIME_HEADINGS, *(_regime_row(label, figures) for label, figures in report.regimes.items())])


def _cause_row(label: str, figures: CauseFigures) -> tuple[str, ...]:
    times = (figures.p50_s, figures.p95_s, figures.p99_s, figures.longest_s)
    share = f"{figures.violation_share:.3%}"
    return (label, f"{figures.gaps:,}", f"{figures.violations:,}", share, *(_milliseconds(value) for value in times))


def _regime_row(label: str, figures: RegimeFigures) -> tuple[str, ...]:
    errors = ("-" if value is None else f"{value:.1%}" for value in (figures.error_p50, figures.error_p95))
    ratios = ("-" if value is None else f"{value:.3f}" for value in (figures.ratio_p50, figures.ratio_p95))
    return (label, f"{figures.steps:,}", f"{figures.predicted_steps:,}", _milliseconds(figures.mean_s), *errors, *ratios)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.2f}"


def _aligned(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join([row[0].ljust(widths[0]), *cells])
