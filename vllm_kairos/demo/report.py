"""One HTML page that needs no other file: what ran, the table, the picture, the answers."""

import base64
from html import escape
from typing import Any

from vllm_kairos.demo.summary import table_rows

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .25rem .9rem; border-bottom: 1px solid #ddd; text-align: right; }
td:first-child, th:first-child { text-align: left; } img { max-width: 100%; } .small { color: #666; font-size: 14px; }
"""


def render(summary: dict[str, Any], picture: bytes) -> str:
    """Return the page."""
    image = base64.b64encode(picture).decode()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Prefill deflection on this machine</title>'
        f"<style>{_STYLE}</style><h1>Prefill deflection on this machine</h1>"
        f"<p>{escape(headline(summary))}</p>{_table(summary)}"
        f'<p><img alt="TTFT over time, distributions of TTFT and TBT" src="data:image/png;base64,{image}"></p>'
        f"<p>{escape(answers_line(summary))}</p>"
        f'<p class="small">{escape(_small_print(summary))}</p></html>\n'
    )


def headline(summary: dict[str, Any]) -> str:
    """The result in one sentence."""
    comparison = summary["comparison"]
    over_unloaded, over_plain = comparison["plain_p95_ttft_over_unloaded"], comparison["deflection_p95_ttft_over_plain"]
    if over_unloaded is None or over_plain is None:
        return "A policy finished no request; the table says why."
    return (
        f"Under this load plain P/D's P95 TTFT is {over_unloaded:.1f} times that of the idle system; "
        f"deflection brings it to {over_plain:.2f} of plain P/D's."
    )


def answers_line(summary: dict[str, Any]) -> str:
    """What the answer check found."""
    answers = summary["answers"]
    if answers is None:
        return "Answers were not compared."
    found = f"{answers['identical']} of {answers['prompts']} prompts gave the same tokens on each of {answers['ways']} ways."
    return f"{found} {answers['first_difference']}".strip()


def _table(summary: dict[str, Any]) -> str:
    heading, *rows = table_rows(summary)
    lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in heading) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _small_print(summary: dict[str, Any]) -> str:
    load, environment, objectives = summary["load"], summary["environment"], summary["objectives"]
    return (
        f"{load['requests']} requests in {load['duration_s']:g} s, seed {load['seed']}; lengths: {load['lengths']} "
        f"(CC BY 4.0, Microsoft). Objectives: TTFT {objectives['ttft_s']:g} s, TBT {objectives['tbt_s'] * 1e3:g} ms. "
        f"{environment['model']} on {environment['hardware']}, vLLM {environment['vllm_version']}, "
        f"vllm-kairos {environment['kairos_version']}. Medians over {len(summary['runs']) // 2} run(s) of each policy."
    )
