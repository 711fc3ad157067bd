"""The files that describe a sweep: results.json, summary.csv, pictures and the HTML page around them."""

from collections.abc import Sequence

from vllm_kairos.results.json_text import to_json
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.document import environment, results_document, summary_csv
from vllm_kairos.simulate.load_lines import load_lines
from vllm_kairos.simulate.plot import draw_all
from vllm_kairos.simulate.report import care_lines, profile_lines, render
from vllm_kairos.simulate.sweep import CellResult
from vllm_kairos.simulate.sweep_tables import sweep_tables
from vllm_kairos.simulate.table import groups_of
from vllm_kairos.workload.describe import describe
from vllm_kairos.workload.request import Workload


def sweep_files(
    command: str, config: SimulateConfig, workload: Workload, results: Sequence[CellResult], *, plots: bool = True
) -> dict[str, str | bytes]:
    """Contents by file name; `workload` is that of the first cell."""
    load, groups = describe(workload), groups_of(results)
    pictures = draw_all(groups, config.objectives) if plots else {}
    page = render(
        f"Simulation of {config.cluster.nodes} under {load.name}",
        lines=[_setting(config), *load_lines(load)],
        warnings=[*workload.warnings, *care_lines(groups)],
        tables=sweep_tables(groups),
        pictures=pictures,
        command=command,
        small=list(profile_lines(environment(config))),
    )
    document = results_document(command, config, load, workload.warnings, results)
    return {"results.json": to_json(document), "summary.csv": summary_csv(results), **pictures, "report.html": page}


def _setting(config: SimulateConfig) -> str:
    objectives, seeds = config.objectives, config.sweep.seeds
    return (
        f"Objectives: TTFT {objectives.ttft_slo_ms:g} ms, TBT {objectives.tbt_slo_ms:g} ms. "
        f"Figures are medians over {len(seeds)} seed(s): {', '.join(map(str, seeds))}."
    )
