"""One HTML page that needs no other file: the load, the table, the pictures, and what to be careful about."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment

from vllm_kairos.simulate.table import Group

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 90rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .2rem .7rem; border-bottom: 1px solid #ddd; }
td, th { text-align: right; } td:first-child, th:first-child { text-align: left; } img { max-width: 100%; }
.mark { background: #fff3cd; } .small { color: #666; font-size: 14px; } code { white-space: pre-wrap; }
</style>
<h1>{{ title }}</h1>
{% for line in lines %}<p>{{ line }}</p>
{% endfor %}{% for warning in warnings %}<p class="mark">{{ warning }}</p>
{% endfor %}{% for table in tables %}<h2>{{ table.title }}</h2>
<table><tr>{% for cell in table.headings %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in table.rows %}<tr{% if loop.index0 in table.marked %} class="mark"{% endif %}>
{%- for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% endfor %}{% for name, image in images.items() %}<p><img alt="{{ name }}" src="data:image/png;base64,{{ image }}"></p>
{% endfor %}<p class="small">{{ command }}</p>{% for line in small %}<p class="small">{{ line }}</p>{% endfor %}
</html>
"""


class Table(NamedTuple):
    """A table of texts; rows in `marked` are to be read with care."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


def render(
    title: str,
    *,
    lines: Sequence[str],
    warnings: Sequence[str],
    tables: Sequence[Table],
    pictures: Mapping[str, bytes],
    command: str,
    small: Sequence[str] = (),
) -> str:
    """Return the page."""
    page = Environment(autoescape=True).from_string(_PAGE)
    images = {name: base64.b64encode(picture).decode() for name, picture in pictures.items()}
    shown = {"title": title, "lines": lines, "warnings": warnings, "tables": tables, "images": images}
    return page.render(shown | {"command": command, "small": small})


def outside_share(group: Group) -> float:
    """Share of the decisions that used shapes beyond those the profile was fitted on."""
    return group.middle(lambda one: one.out_of_range_share) or 0.0


def care_lines(groups: Sequence[Group]) -> Iterator[str]:
    """What a reader of these figures has to know."""
    outside = {group.policy: outside_share(group) for group in groups if outside_share(group)}
    if outside:
        worst = max(outside, key=lambda policy: outside[policy])
        yield (
            f"Beyond the profile: up to {outside[worst]:.1%} of the decisions ({worst}) concern batches larger than any the "
            "profile was fitted on; step times there are extrapolated. Those rows are marked."
        )
    refused = sum(one.rejected for group in groups for one in group.figures)
    if refused:
        yield f"{refused} requests were rejected in all; they count as missing their objectives."


def profile_lines(environment: Mapping[str, Any]) -> Iterator[str]:
    """Where the latencies are from."""
    for role, profile in environment["profiles"].items():
        errors = ", ".join(f"{part} {error:.1%}" for part, error in profile["mape"].items())
        note = f"; {profile['note']}" if profile["note"] else ""
        yield f"{role} profile: {profile['model']} on {profile['hardware']}, held-out error {errors}{note}"
