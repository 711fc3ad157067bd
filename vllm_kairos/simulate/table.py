"""The table a person reads: one row per policy and rate, medians over the seeds."""

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import NamedTuple

from vllm_kairos.simulate.figures import Figures
from vllm_kairos.simulate.sweep import CellResult


class Group(NamedTuple):
    """The repeats of one policy at one rate."""

    policy: str
    rate_rps: float | None
    figures: tuple[Figures, ...]

    def middle(self, read: Callable[[Figures], float | None]) -> float | None:
        """The median over the repeats of what `read` takes from each; None where none has it."""
        values = [value for one in self.figures if (value := read(one)) is not None]
        return median(values) if values else None


def groups_of(results: Iterable[CellResult]) -> list[Group]:
    """In the order of the rates, and in them of the policies, as given."""
    found: dict[tuple[float | None, str], list[Figures]] = {}
    for result in results:
        found.setdefault((result.rate_rps, result.policy), []).append(result.figures)
    return [Group(policy, rate, tuple(figures)) for (rate, policy), figures in found.items()]


class Column(NamedTuple):
    """A heading (and a shorter one for terminals), where its number is from and how it is shown."""

    heading: str
    short: str
    read: Callable[[Figures], float | None]
    show: Callable[[float], str]


def _ms(value_s: float) -> str:
    return f"{value_s * 1e3:,.0f}"


def _fine_ms(value_s: float) -> str:
    return f"{value_s * 1e3:,.1f}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _fine_percent(share: float) -> str:
    return f"{share:.2%}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


COLUMNS = (
    Column("TTFT p50, ms", "TTFT ms p50", lambda one: one.ttft_s.p50, _ms),
    Column("TTFT p95, ms", "p95", lambda one: one.ttft_s.p95, _ms),
    Column("TTFT p99, ms", "p99", lambda one: one.ttft_s.p99, _ms),
    Column("TBT p50, ms", "TBT ms p50", lambda one: one.tbt_s.p50, _fine_ms),
    Column("TBT p95, ms", "p95", lambda one: one.tbt_s.p95, _fine_ms),
    Column("TBT p99, ms", "p99", lambda one: one.tbt_s.p99, _fine_ms),
    Column("TBT violations", "TBT late", lambda one: one.tbt_s.violation_share, _fine_percent),
    Column("SLO attained", "SLO met", lambda one: one.slo_attainment, _percent),
    Column("output tokens/s", "tokens/s", lambda one: one.output_tokens_per_s, _count),
    Column("deflected", "deflected", lambda one: one.deflected / one.requests if one.requests else 0.0, _percent),
    Column("rejected", "rejected", lambda one: one.rejected, _count),
    Column("outside profile", "unfitted", lambda one: one.out_of_range_share, _percent),
)
HEADINGS = ("policy", "req/s", *(column.heading for column in COLUMNS))
SHORT_HEADINGS = ("policy", "req/s", *(column.short for column in COLUMNS))


def table_rows(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """One row of texts per group, below HEADINGS."""
    return [(group.policy, rate_text(group), *(_cell(group, column) for column in COLUMNS)) for group in groups]


def rate_text(group: Group) -> str:
    """The rate, or that it is the workload's own."""
    return "own" if group.rate_rps is None else f"{group.rate_rps:g}"


def _cell(group: Group, column: Column) -> str:
    value = group.middle(column.read)
    return "-" if value is None else column.show(value)


def as_text(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    widths = [max(len(row[at]) for row in (headings, *rows)) for at in range(len(headings))]
    return "\n".join(_line(row, widths) for row in (headings, *rows))


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
    return "  ".join(cells).rstrip()
