"""One cell: a load sent to the servers of a contender, and what client and engines say of it."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.governor.contenders import Contender
from benchmarks.governor.engine_view import engine_figures, tpot_attainment, tpot_buckets, windows
from benchmarks.governor.plan import Place
from benchmarks.governor.setting import Case, ObjectiveKind
from benchmarks.serving.record import Row, cell_figures, flat, load_summary, measured_cell
from benchmarks.serving.sending import Target, send, warm_up
from benchmarks.serving.servers import grown, read_counters, read_metrics, wait_idle
from benchmarks.serving.setting import workload_of
from benchmarks.serving.usage import Usage
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.replay.run import Outcome
from vllm_kairos.workload.request import Workload

_IDLE_LIMIT_S = 300.0
_SETTLE_S = 1.5
"""Until the engines, which write twice a second, have written their last steps and counts."""
_FEW, _FEW_TOKENS = 3, 16
_SINGLE_TOKENS = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A contender's servers while they run; `step_files` are of those that decode."""

    cluster: LocalCluster
    spec: ClusterSpec
    contender: Contender
    step_files: tuple[Path, ...]

    @property
    def url(self) -> str:
        """Where clients send requests."""
        return self.cluster.router_url if self.spec.router else self.cluster.plan.servers[-1].url

    @property
    def urls(self) -> list[str]:
        """Of the servers."""
        return [server.url for server in self.cluster.plan.servers]

    @property
    def usage(self) -> Usage:
        """Of the servers, and of the router if there is one, from here on."""
        groups = [self.cluster.pid(server.name) for server in self.cluster.plan.servers]
        return Usage(groups, [self.cluster.pid("router")] if self.spec.router else [])

    def target(self, case: Case) -> Target:
        """The endpoint."""
        return Target(urls=(self.url,), model=self.cluster.plan.served_model_name, objectives=case.load.objectives)


async def warm(served: Served, place: Place) -> None:
    """Let fresh servers do everything once. Raises ClusterError.

    Where it matters how soon a wrong profile is made up for, a few prefill steps have to do: too few for any correction.
    """
    workload = workload_of(place.case.load, None, place.key.rate_rps, place.key.repeat)
    target = served.target(place.case)
    await warm_up(target, _few(workload) if served.contender.is_scaled else workload, seed=place.key.warm_up_seed)
    await asyncio.sleep(_SETTLE_S)


def _few(workload: Workload) -> Workload:
    first = (replace(one, prompt_tokens=_FEW_TOKENS, output_tokens=1, block_hashes=()) for one in workload.requests[:_FEW])
    return replace(workload, requests=tuple(first))


async def run_cell(served: Served, place: Place) -> dict[str, Any]:
    """The cell's record. Raises ClusterError when the servers are no longer fit for another one."""
    case, key, began_s = place.case, place.key, time.monotonic()
    workload = workload_of(case.load, None, key.rate_rps, key.repeat)
    async with aiohttp.ClientSession() as session:
        await wait_idle(session, served.urls, limit_s=_IDLE_LIMIT_S)
        counters, buckets = await read_counters(session, served.urls), await _buckets(session, served.urls)
        usage, start_s = served.usage, time.time()
        outcome = await send(served.target(case), workload, seed=key.prompt_seed, patience_s=case.patience_s)
        within_s, machine = (start_s, time.time()), usage.spent()
        _, idle_s = await wait_idle(session, served.urls, limit_s=_IDLE_LIMIT_S)
        await asyncio.sleep(_SETTLE_S)
        growth = grown(counters, await read_counters(session, served.urls))
        attained = tpot_attainment(buckets, await _buckets(session, served.urls), case.slo_s)
    engine = engine_figures(served.step_files, case.slo_s, within_s)
    return measured_cell(
        key,
        case=case.name,
        figures=_client_figures(case, outcome),
        engine=engine | {"tpot_attainment": attained, "windows": windows(served.step_files, case.slo_s, within_s)},
        servers={"counters": growth, "tbt_violations_by_cause": engine["violations_by_cause"]},
        machine=machine,
        load=load_summary(workload),
        idle_after_s=idle_s,
        took_s=time.monotonic() - began_s,
    )


def _client_figures(case: Case, outcome: Outcome) -> dict[str, Any]:
    figures = cell_figures(outcome.replayed.samples, case.load.objectives, outcome.client_lags_s)
    return figures | {"wall_s": outcome.wall_s}


async def _buckets(session: aiohttp.ClientSession, urls: Sequence[str]) -> dict[float, float]:
    """Of all servers together."""
    total: dict[float, float] = {}
    for url in urls:
        for bound, count in tpot_buckets(await read_metrics(session, url)).items():
            total[bound] = total.get(bound, 0.0) + count
    return total


def row_of(record: Mapping[str, Any], case: Case) -> Row:
    """The record as a row: what the client saw, and by `engine_` what the engines say.

    `late_share` is what the case's objective is about, by the engines: gaps over it, or requests. `good_rps` is the
    share of requests that attain both objectives, times the rate. The client's gaps say nothing where several tokens
    come at a time.
    """
    row: Row = {"case": case.name, **flat(record)}
    if record["status"] != "ok":
        return row
    engine, figures = record["engine"], record["figures"]
    row |= {f"engine_{name}": engine[name] for name in ("steps", "gaps", "violations", "violation_share", "tpot_attainment")}
    row |= {f"engine_tbt_{rank}_s": engine[f"{rank}_s"] for rank in ("p50", "p95", "p99", "longest")}
    if (figures["tokens_per_arrival"] or 1.0) > _SINGLE_TOKENS:
        row["tbt_violation_share"] = None
    attained = engine["tpot_attainment"]
    late_requests = 1 - (figures["tbt_attainment"] if attained is None else attained)
    row["late_share"] = engine["violation_share"] if case.objective is ObjectiveKind.TBT else late_requests
    row["good_rps"] = figures["slo_attainment"] * record["rate_rps"]
    return row
