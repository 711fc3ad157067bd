"""Everything that is left when a replay has ended: the table on stdout and the files."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_kairos.replay.document import request_rows, results_document
from vllm_kairos.replay.figures import Figures, figures_of
from vllm_kairos.replay.plot import draw
from vllm_kairos.replay.report import render
from vllm_kairos.replay.run import Outcome
from vllm_kairos.replay.settings import ReplaySettings
from vllm_kairos.replay.table import as_text, latency_rows, summary_lines
from vllm_kairos.results.json_text import to_json, to_jsonl
from vllm_kairos.results.out_dir import write_all
from vllm_kairos.workload.request import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What is written beside the figures."""

    token_times: bool = False
    plots: bool = True


def write_results(
    out: Path, command: str, settings: ReplaySettings, workload: Workload, outcome: Outcome, options: WriteOptions
) -> Figures:
    """Print and write everything; return the figures. Raises ConfigError when a file cannot be written."""
    samples, ramp_s = outcome.replayed.samples, settings.load.ramp_s
    figures = figures_of(
        samples,
        settings.objectives,
        ramp_s=ramp_s,
        not_sent=outcome.replayed.not_sent,
        client_lags_s=outcome.client_lags_s,
    )
    warnings = [*workload.warnings, *care_lines(figures, settings)]
    document = results_document(command, settings, workload, outcome, figures, warnings)
    rows = to_jsonl(request_rows(samples, ramp_s=ramp_s, token_times=options.token_times))
    files = {"results.json": to_json(document), "requests.jsonl": rows}
    picture = draw(samples, settings.objectives) if options.plots else None
    notes = (outcome.prompt_note, *summary_lines(figures))
    files["report.html"] = render(figures, notes=notes, warnings=warnings, command=command, picture=picture)
    write_all(out, files)
    _print(figures, warnings, f"wrote {', '.join(files)} to {out}")
    return figures


def care_lines(figures: Figures, settings: ReplaySettings) -> Iterator[str]:
    """What a reader of these figures has to know."""
    lag_s = figures.send_lag_s.p99
    if lag_s is not None and lag_s > settings.warn_lag_s:
        yield (
            f"P99 send lag is {lag_s * 1e3:,.0f} ms, above {settings.warn_lag_s * 1e3:g} ms: this client fell behind the "
            "schedule, so the load was not the one asked for and TTFT from due holds the lag"
        )
    client_s = figures.client_lag_s.p99
    if client_s is not None and client_s > settings.warn_lag_s:
        yield (
            f"P99 client lag is {client_s * 1e3:,.0f} ms, above {settings.warn_lag_s * 1e3:g} ms: this client was busy, so "
            "chunks were read late"
        )
    if figures.output_length_mismatches:
        yield f"{figures.output_length_mismatches} answers have another length than the trace says"
    for kind, example in figures.error_examples.items():
        yield f"{figures.errors[kind]} failed as {kind}, the first with: {example}"


def _print(figures: Figures, warnings: list[str], last: str) -> None:
    lines = [*(f"warning: {warning}" for warning in warnings), as_text(latency_rows(figures)), *summary_lines(figures), last]
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text.encode(errors="backslashreplace").decode())  # a file's name may be any bytes
