"""What `kairos plan` found, as text, JSON and HTML."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from vllm_kairos.results.json_text import to_json
from vllm_kairos.simulate.config import SimulateConfig
from vllm_kairos.simulate.document import RESULTS_SCHEMA, environment
from vllm_kairos.simulate.load_lines import load_lines
from vllm_kairos.simulate.plan import Candidate, PlanOutcome
from vllm_kairos.simulate.plan_search import PlanConfig
from vllm_kairos.simulate.report import Table, profile_lines, render
from vllm_kairos.workload.describe import describe
from vllm_kairos.workload.request import Workload

HEADINGS = ("policy", "nodes", "cost", "SLO met", "TTFT ms p95", "TBT ms p95", "TBT late", "deflected", "verdict")


def verdict_line(outcome: PlanOutcome, plan: PlanConfig) -> str:
    """The answer in one sentence."""
    if outcome.answer is not None:
        best = outcome.answer
        met = f"{best.attainment:.2%} of the requests attain their objectives"
        return f"{best.point.nodes} under {best.point.policy}, at cost {best.cost:g}: {met}."
    line = f"No size of up to {plan.max_nodes} nodes lets {plan.attainment:.2%} of the requests attain their objectives"
    if outcome.closest is None:
        return f"{line}."
    near = outcome.closest
    return f"{line}; {near.point.nodes} under {near.point.policy} comes closest, with {near.attainment:.2%}."


def candidate_rows(outcome: PlanOutcome) -> list[tuple[str, ...]]:
    """Below HEADINGS, in the order they were tried; dashes where a run was given up."""
    return [_row(candidate, outcome) for candidate in outcome.tried]


def _row(candidate: Candidate, outcome: PlanOutcome) -> tuple[str, ...]:
    figures = candidate.figures
    place = candidate.point.policy, candidate.point.nodes, f"{candidate.cost:g}"
    if figures is None:
        return (*place, f"< {candidate.attainment:.2%}", "-", "-", "-", "-", "given up")
    verdict = "answer" if candidate is outcome.answer else "enough" if candidate.good else "not enough"
    return (
        *place,
        f"{candidate.attainment:.2%}",
        _ms(figures.ttft_s.p95),
        _ms(figures.tbt_s.p95),
        f"{figures.tbt_s.violation_share:.2%}",
        f"{figures.deflected / figures.requests:.1%}",
        verdict,
    )


def _ms(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1e3:,.0f}"


def plan_files(
    command: str, config: SimulateConfig, plan: PlanConfig, workload: Workload, outcome: PlanOutcome
) -> dict[str, str | bytes]:
    """plan.json and plan.html."""
    load, places = describe(workload), environment(config)
    page = render(
        f"Nodes for {load.name}",
        lines=[verdict_line(outcome, plan), _asked(config, plan), *load_lines(load)],
        warnings=workload.warnings,
        tables=[Table("Candidates, in the order they were tried", HEADINGS, candidate_rows(outcome), _marked(outcome))],
        pictures={},
        command=command,
        small=list(profile_lines(places)),
    )
    document = {
        "schema": RESULTS_SCHEMA,
        "command": command,
        "environment": places,
        "config": config.as_json() | {"plan": asdict(plan)},
        "workload": asdict(load),
        "answer": _candidate_json(outcome.answer),
        "closest": _candidate_json(outcome.closest),
        "tried": [_candidate_json(candidate) for candidate in outcome.tried],
    }
    return {"plan.json": to_json(document), "plan.html": page}


def _asked(config: SimulateConfig, plan: PlanConfig) -> str:
    objectives = config.objectives
    return (
        f"Asked for: {plan.attainment:.2%} within TTFT {objectives.ttft_slo_ms:g} ms and TBT {objectives.tbt_slo_ms:g} ms, "
        f"up to {plan.max_nodes} nodes; a prefill node costs {plan.prefill_cost:g}, one that decodes {plan.decode_cost:g}."
    )


def _marked(outcome: PlanOutcome) -> frozenset[int]:
    return frozenset(at for at, one in enumerate(outcome.tried) if one in (outcome.answer, outcome.closest))


def _candidate_json(candidate: Candidate | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    figures: Sequence[Any] = [None if one.figures is None else one.figures.as_json() for one in candidate.results]
    return {
        "policy": candidate.point.policy,
        "nodes": candidate.point.nodes,
        "cost": candidate.cost,
        "good": candidate.good,
        "complete": candidate.complete,
        "slo_attainment": candidate.attainment,
        "figures_by_seed": figures,
    }
