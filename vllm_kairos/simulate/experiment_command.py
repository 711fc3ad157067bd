"""`kairos simulate --experiment NAME`."""

import argparse
import time
from pathlib import Path

from vllm_kairos.results.json_text import to_json
from vllm_kairos.results.out_dir import make_out_dir, write_all
from vllm_kairos.simulate.experiment_run import (
    HEADINGS,
    configs_of,
    experiment_files,
    experiment_pictures,
    experiment_rows,
    run_sweeps,
    texts,
)
from vllm_kairos.simulate.experiments.public_traces import need_traces
from vllm_kairos.simulate.experiments.registry import find_experiment
from vllm_kairos.simulate.options import Values
from vllm_kairos.simulate.progress import request_bar
from vllm_kairos.simulate.sweep import check, grid
from vllm_kairos.simulate.sweep_report import sweep_files
from vllm_kairos.simulate.table import as_text


def run_experiment(arguments: argparse.Namespace, overrides: Values, command: str, *, workers: int) -> list[str]:
    """Run it and write its files; return the lines to print."""
    experiment = find_experiment(arguments.experiment)
    configs = configs_of(experiment, overrides)
    if "trace" not in overrides.get("workload", {}):
        need_traces(experiment.name, configs.values())
    loads = {label: check(config) for label, config in configs.items()}
    out, started_s = make_out_dir(arguments.out), time.monotonic()
    counts = {label: len(grid(config)) for label, config in configs.items()}
    requests = sum(counts[label] * len(loads[label].requests) for label in counts)
    with request_bar(f"{sum(counts.values())} simulations", requests) as tell:
        results = run_sweeps(configs, workers=workers, tell=tell)
    pictures = experiment_pictures(experiment, results) if arguments.plots else {}
    drawn = dict(pictures)
    for label, config in configs.items():
        each = sweep_files(command, config, loads[label], results[label], plots=arguments.plots)
        write_all(make_out_dir(Path(out, label)), each)
        pictures |= {f"{label}: {name}": content for name, content in each.items() if isinstance(content, bytes)}
    files = {**experiment_files(command, experiment, configs, results, pictures), **drawn}
    files["timing.json"] = to_json({"wall_s": time.monotonic() - started_s, "simulations": sum(counts.values())})
    write_all(out, files)
    rows = texts(experiment_rows(experiment, results))
    return [as_text(HEADINGS, rows), f"wrote {', '.join(files)} and {', '.join(configs)}/ to {out}"]
