"""The figures of a replay as texts for a person."""

from collections.abc import Iterator

from vllm_kairos.replay.figures import Figures, Quantiles

HEADINGS = ("", "p50", "p90", "p95", "p99", "mean", "max")
_ROWS = (
    ("TTFT from due, ms", "ttft_s"),
    ("TTFT from sent, ms", "ttft_from_sent_s"),
    ("TBT, ms", "tbt_s"),
    ("TPOT, ms", "tpot_s"),
    ("whole answer from due, ms", "e2e_s"),
    ("send lag, ms", "send_lag_s"),
    ("client lag, ms", "client_lag_s"),
)


def latency_rows(figures: Figures) -> list[tuple[str, ...]]:
    """One row of texts per quantity, below HEADINGS."""
    return [(name, *_cells(getattr(figures, field))) for name, field in _ROWS]


def summary_lines(figures: Figures) -> Iterator[str]:
    """What the table does not say."""
    yield f"{figures.requests} requests, {figures.failed} failed{_bracketed(figures.errors)}"
    left_out = {"in the ramp": figures.warm_up, "interrupted": figures.interrupted, "not sent": figures.not_sent}
    if any(left_out.values()):
        yield "left out: " + ", ".join(f"{count} {name}" for name, count in left_out.items() if count)
    offered = "" if figures.offered_rps is None else f", {figures.offered_rps:.3g} offered"
    yield (
        f"goodput {figures.goodput_rps:.3g} requests/s of {figures.requests_per_s:.3g} answered{offered}; "
        f"{figures.output_tokens_per_s:,.0f} output tokens/s"
    )
    yield (
        f"objectives met: {figures.slo_attainment:.1%} "
        f"(TTFT {figures.ttft_attainment:.1%}, TPOT {figures.tbt_attainment:.1%}); "
        f"single gaps over the TBT objective: {figures.tbt_violation_share:.2%}"
    )
    if not figures.decisions_told:
        yield "decisions: none told (our router tells them with --decision-headers)"
    else:
        kept = sum(figures.kept_reasons.values())
        yield f"deflected {figures.deflected}{_bracketed(figures.deflected_reasons)}"
        yield f"kept {kept}{_bracketed(figures.kept_reasons)}"


def _cells(quantiles: Quantiles) -> Iterator[str]:
    for name in HEADINGS[1:]:
        value = getattr(quantiles, "most" if name == "max" else name)
        yield "-" if value is None else f"{value * 1e3:,.1f}"


def _bracketed(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{name} {count}' for name, count in counts.items())})" if counts else ""


def as_text(rows: list[tuple[str, ...]]) -> str:
    """Aligned columns below HEADINGS, the first to the left and the others to the right."""
    table = [HEADINGS, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(HEADINGS))]
    lines = (
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in table
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)
