"""One HTML page that needs no other file."""

import base64
from collections.abc import Iterable

from jinja2 import Environment

from vllm_kairos import __version__
from vllm_kairos.replay.figures import Figures
from vllm_kairos.replay.table import HEADINGS, latency_rows

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Replay</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child { text-align: left; } img { max-width: 100%; } .care { background: #fff3cd; } .small { color: #666; }
</style>
<h1>Replay</h1>
{% for warning in warnings %}<p class="care">{{ warning }}</p>
{% endfor %}<table><tr>{% for cell in headings %}<th>{{ cell }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for note in notes %}<p>{{ note }}</p>
{% endfor %}{% if image %}<p><img alt="latencies, rates and send lag" src="data:image/png;base64,{{ image }}"></p>
{% endif %}<p class="small">{{ command }} (vllm-kairos {{ version }})</p>
</html>
"""


def render(figures: Figures, *, notes: Iterable[str], warnings: Iterable[str], command: str, picture: bytes | None) -> str:
    """Return the page."""
    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            headings=HEADINGS,
            rows=latency_rows(figures),
            notes=list(notes),
            warnings=list(warnings),
            image=None if picture is None else base64.b64encode(picture).decode(),
            command=command,
            version=__version__,
        )
    )
