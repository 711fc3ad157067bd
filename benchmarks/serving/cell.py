"""One cell: a front is started, warmed up, sent the load, and ended; then the servers are left to become idle."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.serving.contenders import Contender, Programs, free_ports, front_plans
from benchmarks.serving.front import serving
from benchmarks.serving.record import cell_figures, failed_cell, load_summary, measured_cell
from benchmarks.serving.sending import Target, send, warm_up
from benchmarks.serving.servers import Counters, grown, read_counters, violations_by_cause, wait_idle
from benchmarks.serving.setting import Setting, workload_of
from benchmarks.serving.sweep import CellKey
from benchmarks.serving.usage import Usage
from vllm_kairos.cluster.local import LocalCluster
from vllm_kairos.cluster.spec import ClusterSpec
from vllm_kairos.errors import KairosError
from vllm_kairos.replay.run import Outcome
from vllm_kairos.workload.request import Workload

_IDLE_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all cells share."""

    setting: Setting
    spec: ClusterSpec
    programs: Programs
    traces: Path | None
    out: Path


async def run_cell(bench: Bench, cluster: LocalCluster, contender: Contender, key: CellKey) -> dict[str, Any]:
    """The cell's record, failed or not. Raises ClusterError when the servers are no longer fit for another cell."""
    urls = [server.url for server in cluster.plan.servers]
    workload = workload_of(bench.setting, bench.traces, key.rate_rps, key.repeat)
    started_s = time.monotonic()
    async with aiohttp.ClientSession() as session:
        await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
        try:
            record = await _served(bench, cluster, contender, key, workload, session)
        except KairosError as error:
            record = failed_cell(key, f"{type(error).__name__}: {error}")
        _, idle_s = await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
    return record | {"load": load_summary(workload), "idle_after_s": idle_s, "took_s": time.monotonic() - started_s}


async def _served(
    bench: Bench,
    cluster: LocalCluster,
    contender: Contender,
    key: CellKey,
    workload: Workload,
    session: aiohttp.ClientSession,
) -> dict[str, Any]:
    urls = [server.url for server in cluster.plan.servers]
    groups = [cluster.pid(server.name) for server in cluster.plan.servers]
    log_dir = bench.out / "logs" / key.file_name.removesuffix(".json")
    ports = free_ports(contender)
    plans = front_plans(contender, bench.spec, cluster.plan, bench.programs, ports=ports, log_dir=log_dir)
    async with serving(contender, plans, session) as front:
        target = Target(urls=front.urls, model=cluster.plan.served_model_name, objectives=bench.setting.objectives)
        await warm_up(target, workload, seed=key.warm_up_seed)
        await wait_idle(session, urls, limit_s=_IDLE_LIMIT_S)
        before, usage = await read_counters(session, urls), Usage(groups, front.groups)
        outcome = await send(target, workload, seed=key.prompt_seed)
        spent = usage.spent()
        growth = grown(before, await read_counters(session, urls))
        front.check_running()
    about_front = {"ready_s": front.ready_s, "processes": contender.processes}
    return measured_cell(key, **_figures(bench.setting, outcome, growth), front=about_front, machine=spent)


def _figures(setting: Setting, outcome: Outcome, growth: Counters) -> dict[str, Any]:
    return {
        "figures": cell_figures(outcome.replayed.samples, setting.objectives, outcome.client_lags_s)
        | {"wall_s": outcome.wall_s},
        "servers": {"counters": growth, "tbt_violations_by_cause": violations_by_cause(growth)},
    }
