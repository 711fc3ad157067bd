"""The tables of a sweep's page; figures are medians over the seeds, counts their sums."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from vllm_kairos.simulate.figures import PARTS, Figures
from vllm_kairos.simulate.report import Table, outside_share
from vllm_kairos.simulate.table import HEADINGS, Group, rate_text, table_rows

_PLACE = HEADINGS[:2]


def sweep_tables(groups: Sequence[Group]) -> list[Table]:
    """All of them."""
    marked = frozenset(at for at, group in enumerate(groups) if outside_share(group))
    names = list(dict.fromkeys(name for group in groups for name in group.figures[0].nodes))
    return [
        Table("Figures", HEADINGS, table_rows(groups), marked),
        _table("Where the TTFT went: mean / P95, ms", list(PARTS.values()), groups, _parts),
        _table("Decisions", ("deflected because", "kept because", "rejected because"), groups, _reasons),
        _table("TBT violations by what else the step carried", ("gaps",), groups, _causes),
        _table("Predicted against actual TTFT: median / P90 error", ("kept", "deflected"), groups, _errors),
        _table("How busy each node was", names, groups, lambda group: [_busy(group, name) for name in names]),
    ]


def _table(title: str, headings: Sequence[str], groups: Sequence[Group], cells: Callable[[Group], Sequence[str]]) -> Table:
    return Table(title, (*_PLACE, *headings), [(group.policy, rate_text(group), *cells(group)) for group in groups])


def _parts(group: Group) -> list[str]:
    return [_part(group, name) for name in PARTS]


def _part(group: Group, name: str) -> str:
    mean_s = group.middle(lambda one: one.breakdown[name].mean)
    p95_s = group.middle(lambda one: one.breakdown[name].p95)
    return "-" if mean_s is None or p95_s is None else f"{mean_s * 1e3:,.0f} / {p95_s * 1e3:,.0f}"


def _reasons(group: Group) -> list[str]:
    return [
        _summed(group, lambda one: one.deflected_reasons),
        _summed(group, lambda one: one.kept_reasons),
        _summed(group, lambda one: one.rejected_reasons),
    ]


def _causes(group: Group) -> list[str]:
    return [_summed(group, lambda one: one.tbt_s.violations_by_cause)]


def _summed(group: Group, read: Callable[[Figures], Mapping[str, int]]) -> str:
    counts = sum((Counter(read(one)) for one in group.figures), Counter[str]())
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common() if count) or "-"


def _errors(group: Group) -> list[str]:
    kept = group.middle(lambda one: one.error_kept.median), group.middle(lambda one: one.error_kept.p90)
    deflected = group.middle(lambda one: one.error_deflected.median), group.middle(lambda one: one.error_deflected.p90)
    return [_both(*kept), _both(*deflected)]


def _both(median: float | None, p90: float | None) -> str:
    return "-" if median is None or p90 is None else f"{median:.1%} / {p90:.1%}"


def _busy(group: Group, name: str) -> str:
    share = group.middle(lambda one: one.nodes[name].busy_share if name in one.nodes else None)
    return "-" if share is None else f"{share:.0%}"
