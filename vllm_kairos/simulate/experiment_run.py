"""Run an experiment: all its sweeps in one go, a folder for each, and a page that compares."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vllm_kairos.results.json_text import to_json
from vllm_kairos.simulate.config import SECTIONS, SimulateConfig, build_section
from vllm_kairos.simulate.document import environment
from vllm_kairos.simulate.experiment_documents import brief_figures, rows_csv, rows_markdown
from vllm_kairos.simulate.experiments.experiment import Experiment, Row
from vllm_kairos.simulate.options import Values
from vllm_kairos.simulate.panels import draw_panels
from vllm_kairos.simulate.report import Table, care_lines, profile_lines, render
from vllm_kairos.simulate.sweep import CellResult, grid, run_cells
from vllm_kairos.simulate.sweep_tables import sweep_tables
from vllm_kairos.simulate.table import groups_of
from vllm_kairos.simulate.workers import Progress

Results = Mapping[str, Sequence[CellResult]]
HEADINGS = ("quantity", "expected", "ours", "difference", "remark")


def configs_of(experiment: Experiment, overrides: Values) -> dict[str, SimulateConfig]:
    """The experiment's sweeps by label, with what the user set in place of their own values."""
    return {label: _overridden(config, overrides) for label, config in experiment.sweeps().items()}


def run_sweeps(configs: Mapping[str, SimulateConfig], *, workers: int, tell: Progress) -> dict[str, list[CellResult]]:
    """All sweeps' cells through one pool; results by label."""
    cells = {label: grid(config) for label, config in configs.items()}
    results = iter(run_cells([cell for each in cells.values() for cell in each], workers=workers, tell=tell))
    return {label: [next(results) for _ in each] for label, each in cells.items()}


def experiment_rows(experiment: Experiment, results: Results) -> list[Row]:
    """The comparison."""
    return list(experiment.rows({label: groups_of(each) for label, each in results.items()}))


def experiment_pictures(experiment: Experiment, results: Results) -> dict[str, bytes]:
    """figure.png where the experiment has panels and a sweep to draw."""
    first = next(iter(results.values()), ())
    return {"figure.png": draw_panels(groups_of(first), experiment.panels)} if experiment.panels and first else {}


def experiment_files(
    command: str,
    experiment: Experiment,
    configs: Mapping[str, SimulateConfig],
    results: Results,
    pictures: Mapping[str, bytes],
) -> dict[str, str | bytes]:
    """experiment.json, .csv and .md, and report.html around `pictures`; a sweep's own files go to a folder of its label."""
    rows = experiment_rows(experiment, results)
    groups = {label: groups_of(each) for label, each in results.items()}
    sweeps = [table._replace(title=f"{label}: {table.title}") for label in groups for table in sweep_tables(groups[label])]
    environments = {label: environment(config) for label, config in configs.items()}
    page = render(
        f"Experiment {experiment.name}",
        lines=[experiment.summary],
        warnings=list(dict.fromkeys(line for each in groups.values() for line in care_lines(each))),
        tables=[Table(f"Beside {experiment.expected_from}", HEADINGS, texts(rows)), *sweeps],
        pictures=pictures,
        command=command,
        small=list(dict.fromkeys(line for each in environments.values() for line in profile_lines(each))),
    )
    document = {
        "experiment": experiment.name,
        "command": command,
        "expected_from": experiment.expected_from,
        "rows": [row.as_json() for row in rows],
        "sweeps": {label: configs[label].as_json() for label in configs},
        "environments": environments,
        "figures": brief_figures(groups),
    }
    plain = [(row.quantity, row.unit, row.expected, row.ours, row.difference, row.full_remark) for row in rows]
    return {
        "experiment.json": to_json(document),
        "experiment.csv": rows_csv(("quantity", "unit", *HEADINGS[1:]), plain),
        "experiment.md": rows_markdown(f"{experiment.name}, beside {experiment.expected_from}", HEADINGS, texts(rows)),
        "report.html": page,
    }


def texts(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Below HEADINGS."""
    return [
        (
            f"{row.quantity}, {row.unit}" if row.unit else row.quantity,
            _shown(row.expected),
            _shown(row.ours),
            "-" if row.difference is None else f"{row.difference:+.0%}",
            row.full_remark,
        )
        for row in rows
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _overridden(config: SimulateConfig, overrides: Values) -> SimulateConfig:
    def changed(name: str) -> Any:
        return build_section(name, partial(replace, getattr(config, name)), overrides[name])

    return replace(config, **{name: changed(name) for name in SECTIONS if name in overrides})
