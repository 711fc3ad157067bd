"""An experiment's comparison as Markdown and CSV, and its figures in brief."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from vllm_kairos.simulate.figures import PARTS, Figures, Quantiles
from vllm_kairos.simulate.gaps import GapFigures
from vllm_kairos.simulate.table import Group


def rows_markdown(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading and a table, the first column to the left and the others to the right."""
    rule = ["---", *("---:" for _ in headings[1:])]
    lines = (f"| {' | '.join(cells)} |" for cells in (headings, rule, *rows))
    return f"# {title}\n\n" + "\n".join(lines) + "\n"


def rows_csv(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The same as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()


def brief_figures(groups: Mapping[str, Sequence[Group]]) -> dict[str, list[dict[str, Any]]]:
    """By sweep, for each policy and rate: a list over the seeds of what comparisons are made of."""
    return {label: [_brief(group) for group in each] for label, each in groups.items()}


def _brief(group: Group) -> dict[str, Any]:
    seeds = [_one(figures) for figures in group.figures]
    columns = {name: [one[name] for one in seeds] for name in seeds[0]}
    return {"policy": group.policy, "rate_rps": group.rate_rps, **columns}


def _one(one: Figures) -> dict[str, Any]:
    return {
        "requests": one.requests,
        "rejected": one.rejected,
        "deflected": one.deflected,
        **{f"ttft_{name}_s": value for name, value in _ranks(one.ttft_s).items()},
        "ttft_mean_s": one.ttft_s.mean,
        **{f"tbt_{name}_s": value for name, value in _ranks(one.tbt_s).items()},
        "tbt_violation_share": one.tbt_s.violation_share,
        "slo_attainment": one.slo_attainment,
        "output_tokens_per_s": one.output_tokens_per_s,
        "total_tokens_per_s": one.total_tokens_per_s,
        **{f"{part[:-2]}_p95_s": one.breakdown[part].p95 for part in PARTS},
        "busiest_prefill_share": max((node.busy_share for node in one.nodes.values() if node.role == "prefill"), default=0.0),
        "outside_profile_share": one.out_of_range_share,
    }


def _ranks(values: Quantiles | GapFigures) -> dict[str, float | None]:
    return {"p50": values.p50, "p95": values.p95, "p99": values.p99}
